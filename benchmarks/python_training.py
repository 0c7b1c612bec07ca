"""What a training loop in Python costs: glade's side of compare_loss_fla.py on random tokens, beside train_throughput in C++.

    PYTHONPATH=build/python python benchmarks/python_training.py

Both train for the same number of steps in turns, as a GPU that reaches its limit of power clocks down after some seconds: compare rates of
the same number of steps only. train_throughput reads the loss of every step, the loop in Python of ten steps at once. Beside the rates are
the milliseconds of a step in the first ten and the last ones, and how long the host needs to make a batch and to queue a step (about as
long as the step where it waits for the GPU).
"""

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import glade
from compare_loss_fla import FIRST_STEPS, SIZES, Glade, Text, train_steps

ROOT = Path(__file__).parents[1]
VOCABULARY = 32000  # of train_throughput's models
EVERY = 10  # steps whose losses are read at once, as in compare_loss_fla.py


def timed(f, times):
    def call(*arguments):
        begin = time.perf_counter()
        result = f(*arguments)
        times.append(time.perf_counter() - begin)
        return result

    return call


def train(name, text_path, steps, device):
    """A line of the loop in Python."""
    size = SIZES[name]
    text, side = Text(text_path, size.seq_len, seed=0), Glade(device, size, VOCABULARY, 0, size.lr, lambda step: 1.0)
    making, queueing, rows = [], [], []
    text.batch, side.step = timed(text.batch, making), timed(side.step, queueing)
    end = train_steps(side, text, size, FIRST_STEPS + steps, EVERY, rows.append)
    marks = [(row["step"], row["seconds"]) for row in rows if row["step"] >= FIRST_STEPS]
    per_step = [(b[1] - a[1]) / (b[0] - a[0]) * 1e3 for a, b in zip(marks, marks[1:])]
    host = [statistics.median(times[FIRST_STEPS:]) * 1e3 for times in (making, queueing)]
    return (f"{end['tokens_per_s']:.0f} tokens/s, step {per_step[0]:.2f} ms at first and {per_step[-1]:.2f} ms at last; "
            f"batch {host[0]:.3f} ms, call of the step {host[1]:.3f} ms (at most {max(queueing[FIRST_STEPS:]) * 1e3:.3f})")  # fmt: skip


def train_in_cpp(program, name, steps, device):
    size = SIZES[name]
    command = [program, f"--size={name}", f"--batch={size.batch}", f"--seq-len={size.seq_len}", f"--steps={steps}", f"--device={device}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rate, step = re.search(r"(\d+) tokens/s.*step ([\d.]+) ms", text).groups()
    return f"{rate} tokens/s, step {step} ms in the median"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["134M", "374M"], help="the models (default: 134M 374M)")
    parser.add_argument("--steps", type=int, default=80, help="steps of each, after the first ones (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="times that both train (default: %(default)s)")
    parser.add_argument("--device", default="cuda", help="cuda or cpu (default: %(default)s)")
    parser.add_argument("--program", default=ROOT / "build" / "benchmarks" / "train_throughput", help="built with -DGLADE_BENCHMARKS=ON")
    options = parser.parse_args()
    with tempfile.NamedTemporaryFile() as text:
        with glade.data.TokenWriter(text.name, VOCABULARY) as writer:
            writer.write(glade.randint(VOCABULARY, (1 << 21,)))
        for name in options.sizes:
            for _ in range(options.rounds):
                if name != "tiny":  # which train_throughput does not have
                    print(f"{name} C++:    {train_in_cpp(options.program, name, options.steps, options.device)}", flush=True)
                print(f"{name} Python: {train(name, text.name, options.steps, options.device)}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        sys.exit(f"python_training.py: {error}")

"""Trains glade's language models beside fla's on the same GPU, and generates from them.

    PYTHONPATH=build/python compare_train_fla.py build/benchmarks/train_throughput [--only train,generate,compiled] [--json FILE]
                            [--time-limit SECONDS]

train: whole steps (forward, backward, clipping to norm 1, AdamW) on random tokens: glade's GLA and lightning models, and fla's
two larger GLA models of as many parameters with bfloat16 autocast and PyTorch's fused AdamW. Prints tokens a second, MFU
(6 x parameters x tokens/s over 989 TFLOP/s), peak memory, the seconds from the start of the process to the end of its first step
(fla: of the first of its models, with what its caches of compiled and tuned kernels hold), and each of glade's rows over fla's of
that size.
generate: tokens a second of greedy generation from a prompt of 16 tokens with the 374 M model, bfloat16, and the peak memory, for
glade also of more tokens, which should take no more of it.
compiled: fla's smallest model, under torch.compile, which takes a minute or more.

Every row is measured in a process of its own, or for fla in one process for all of a part. Without torch or fla it prints glade's
figures alone. --json writes what was measured, line by line; runs with the same file add to it.
"""
import argparse
import gc
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from typing import NamedTuple

PEAK_FLOPS = 989e12  # of an H200 in bfloat16, dense
PROMPT = 16  # tokens
COMPILED = "11M"  # the size that is too small for eager PyTorch


class Size(NamedTuple):
    hidden: int
    layers: int
    heads: int
    vocabulary: int
    parameters: int
    batch: int
    tokens: int


SIZES = {
    "374M": Size(1024, 24, 4, 32000, 374475776, 8, 2048),
    "134M": Size(768, 12, 4, 32000, 134333952, 16, 2048),
    "11M": Size(384, 6, 6, 256, 10875264, 64, 256),
}
GENERATIONS = ((1, 128), (64, 128))  # sequences, new tokens
LONG_GENERATIONS = ((1, 1024), (64, 1024))


# What runs in processes of its own: each task returns the figures of a row.

class FlaTasks:
    """fla's models; raises ImportError where they are not installed."""

    def __init__(self, started):
        import torch
        from fla.models import GLAConfig, GLAForCausalLM
        if not torch.cuda.is_available():
            raise ImportError("torch sees no GPU")
        self.torch, self.started = torch, started

        def make(size):
            gc.collect()  # the model before
            config = GLAConfig(hidden_size=size.hidden, num_hidden_layers=size.layers, num_heads=size.heads,
                               vocab_size=size.vocabulary)
            with torch.device("cuda"):
                model = GLAForCausalLM(config)
            parameters = sum(x.numel() for x in model.parameters())
            assert parameters == size.parameters, f"{parameters} parameters, glade's model has {size.parameters}"
            return model

        self.make = make

    def random_tokens(self, size, *shape):
        return self.torch.randint(size.vocabulary, shape, device="cuda")

    def train(self, name, compiled=False, warmup=4, steps=16):
        torch, size = self.torch, SIZES[name]
        model = self.make(size).train()
        forward = torch.compile(model) if compiled else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        tokens = self.random_tokens(size, size.batch, size.tokens)

        def step():
            with torch.autocast("cuda", torch.bfloat16):
                loss = forward(input_ids=tokens, labels=tokens).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return loss.item()

        step()
        figures = {}
        if self.started:
            figures["first_step_s"], self.started = time.time() - self.started, None
        times = []
        for i in range(warmup + steps):
            if i == warmup:
                torch.cuda.reset_peak_memory_stats()
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        rate = size.batch * size.tokens / statistics.median(times[warmup:])
        return dict(figures, tokens_per_s=rate, mfu=6 * size.parameters * rate / PEAK_FLOPS,
                    peak_bytes=torch.cuda.max_memory_allocated())

    def compiled(self, name):
        return self.train(name, compiled=True)

    def generate(self, batch, count):
        torch, size = self.torch, SIZES["374M"]
        model = self.make(size).bfloat16().eval()
        model.generation_config.eos_token_id = None  # random weights must not end early
        prompt = self.random_tokens(size, batch, PROMPT)

        def generate(count):
            out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, do_sample=False,
                                 pad_token_id=0)
            assert out.shape == (batch, PROMPT + count), out.shape
            torch.cuda.synchronize()

        return measure_generation(generate, batch, count, torch.cuda.reset_peak_memory_stats, torch.cuda.max_memory_allocated)


class GladeTasks:
    def __init__(self, started):
        import glade
        self.glade = glade

    def generate(self, batch, count, device="cuda"):
        glade, size = self.glade, SIZES["374M"]
        glade.manual_seed(0)
        model = glade.nn.models.GLAForCausalLM(hidden_size=size.hidden, num_hidden_layers=size.layers, num_heads=size.heads,
                                               vocab_size=size.vocabulary, dtype="bfloat16")
        parameters = sum(x.numel() for x in model.parameters())
        assert parameters == size.parameters, f"{parameters} parameters instead of {size.parameters}"
        model.to(device)
        prompt = [[(7 * i + 11 * j) % size.vocabulary for j in range(PROMPT)] for i in range(batch)]

        def generate(count):
            assert [len(x) for x in model.generate(prompt, count, temperature=0)] == [PROMPT + count] * batch

        return measure_generation(generate, batch, count, glade.cuda.reset_peak_memory_stats,
                                  lambda: glade.cuda.memory_stats()["peak_allocated"])


def measure_generation(generate, batch, count, reset_peak, peak):
    """The fastest of two runs, after a short one."""
    generate(8)
    reset_peak()
    times = []
    for _ in range(2):
        start = time.perf_counter()
        generate(count)
        times.append(time.perf_counter() - start)
    return dict(tokens_per_s=batch * count / min(times), peak_bytes=peak())


def run_tasks(side, started, tasks):
    """The process for some tasks: a line of JSON for each."""
    try:
        runner = {"fla": FlaTasks, "glade": GladeTasks}[side](started)
    except ImportError as error:
        print(json.dumps(dict(error=f"{side} is not measured: {error}")), flush=True)
        return
    for task in tasks:
        kind, *arguments = task.split("/")
        try:
            figures = getattr(runner, kind)(*(int(x) if x.isdigit() else x for x in arguments))
        except Exception as error:  # the other tasks may do
            figures = dict(error=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
        print(json.dumps(dict(figures, task=task)), flush=True)


class Comparison:
    """The parts, and where their rows go."""

    def __init__(self, program, json_file, time_limit):
        self.program, self.json_file = program, json_file
        self.deadline = time.monotonic() + time_limit
        self.results = {}
        if json_file and os.path.exists(json_file):
            with open(json_file) as file:
                self.results = {x["name"]: x for x in json.load(file)}

    def left(self):
        """The seconds up to the time limit."""
        return max(0, self.deadline - time.monotonic())

    def keep(self, name, figures, peer=None):
        """Prints a row, and keeps it. `peer` names the row to divide it by."""
        row = self.results[name] = dict(name=name, **figures)
        text = f"{name:28} {row['tokens_per_s']:10.0f} tokens/s"
        text += f", MFU {100 * row['mfu']:4.1f} %" if "mfu" in row else " " * 12
        text += f", peak {row['peak_bytes'] / 2**30:6.2f} GiB"
        if "first_step_s" in row:
            text += f", first step after {row['first_step_s']:.2f} s"
        if peer in self.results:
            other = self.results[peer]
            row["rate_over_fla"] = row["tokens_per_s"] / other["tokens_per_s"]
            row["memory_over_fla"] = row["peak_bytes"] / other["peak_bytes"]
            text += f"; {row['rate_over_fla']:.2f} x the tokens/s of fla, {row['memory_over_fla']:.2f} x its memory"
        print(text, flush=True)
        if self.json_file:
            with open(self.json_file, "w") as file:
                json.dump(list(self.results.values()), file, indent=1)

    def run(self, side, tasks):
        """The figures of each task of a process, by its name, as they come; of those that fail a line on the standard error."""
        command = [sys.executable, __file__, "--run", side, "--started", str(time.time()), *tasks]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            limit = threading.Timer(self.left(), process.kill)
            limit.start()
            for line in process.stdout:
                figures = json.loads(line) if line.startswith("{") else None
                if figures and "error" in figures:
                    print(f"{side} {figures.get('task', '')}: {figures['error']}", file=sys.stderr)
                elif figures:
                    yield figures.pop("task"), figures
            limit.cancel()
        if process.returncode < 0:
            print(f"{side}: stopped by signal {-process.returncode}", file=sys.stderr)

    def train(self):
        for task, figures in self.run("fla", [f"train/{name}" for name in SIZES if name != COMPILED]):
            self.keep(f"train fla {task.partition('/')[2]}", figures)
        for model in ("gla", "lightning"):
            for name in SIZES:
                self.glade_training(model, name)

    def glade_training(self, model, name):
        size = SIZES[name]
        command = [self.program, "--size", name, "--model", model, "--batch", str(size.batch), "--seq-len", str(size.tokens)]
        try:
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=self.left()).stdout
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"glade {model} {name}: {type(error).__name__}", file=sys.stderr)
            return
        line = r"([\d.]+) tokens/s, MFU ([\d.]+) %.*peak ([\d.]+) GiB, first step after ([\d.]+) s"
        rate, mfu, peak, first = map(float, re.search(line, output).groups())
        figures = dict(tokens_per_s=rate, mfu=mfu / 100, peak_bytes=peak * 2**30, first_step_s=first)
        self.keep(f"train glade {model} {name}", figures, peer=f"train fla {name}")

    def generate(self):
        for side, generations in (("fla", GENERATIONS), ("glade", GENERATIONS + LONG_GENERATIONS)):
            for task, figures in self.run(side, [f"generate/{batch}/{count}" for batch, count in generations]):
                what = task.partition("/")[2].replace("/", " x ")
                self.keep(f"generate {side} {what}", figures, peer=f"generate fla {what}" if side == "glade" else None)

    def compiled(self):
        for task, figures in self.run("fla", [f"compiled/{COMPILED}"]):
            self.keep(f"train fla {COMPILED}", figures)
        glade, peer = (self.results.get(f"train {side} {COMPILED}") for side in ("glade gla", "fla"))
        if glade and peer:
            ratio = glade["tokens_per_s"] / peer["tokens_per_s"]
            print(f"glade trains the {COMPILED} model {ratio:.2f} times as fast as fla with torch.compile")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", help="the train_throughput program")
    parser.add_argument("--only", default="train,generate,compiled", help="parts, in the order wanted (default: all)")
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--time-limit", type=float, default=3600, help="seconds after which everything is stopped")
    parser.add_argument("--run", choices=("fla", "glade"), help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    parser.add_argument("tasks", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run_tasks(options.run, options.started, [options.program, *options.tasks])
        return
    if not options.program:
        parser.error("the train_throughput program is missing")
    comparison = Comparison(options.program, options.json, options.time_limit)
    for part in options.only.split(","):
        getattr(comparison, part)()


if __name__ == "__main__":
    main()

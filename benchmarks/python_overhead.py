"""What Python adds to an operation: x * b + a on 16 numbers on the CPU, in C++ (build/benchmarks/overhead_benchmark), from Python, and in PyTorch.

    python benchmarks/python_overhead.py --output benchmarks/results/FOLDER/python_overhead.json

Rounds of the three follow each other, and the least time of each counts, of the processor: what else the machine does only adds.
"""

import argparse
import json
import platform
import subprocess
import time
import timeit
from pathlib import Path

import glade

ROOT = Path(__file__).parents[1]
CPP_NAMES = {"forward": "overhead/forward_two_operations/cpu", "backward": "overhead/two_operations_backward/cpu"}


def cpp_times(program):
    """Microseconds of both, by name."""
    command = [program, "--benchmark_format=json", f"--benchmark_filter=({'|'.join(CPP_NAMES.values())})$"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["benchmarks"]
    times = {entry["name"]: entry["cpu_time"] / 1e3 for entry in found}
    return {what: times[name] for what, name in CPP_NAMES.items()}


def python_times(library):
    """The same for glade or torch, which spell these lines alike."""
    x, b, a = (library.ones(16) for _ in range(3))
    times = {"forward": time_of(lambda: x * b + a)}
    x, b, a = (library.ones(16, requires_grad=True) for _ in range(3))
    gradient = library.ones(16)

    def forward_backward():
        (x * b + a).backward(gradient)
        x.grad = b.grad = a.grad = None

    times["backward"] = time_of(forward_backward)
    return times


def time_of(f, calls=20000):
    f()
    # Less the loop and the call of f, which C++ does not have.
    empty, full = (min(timeit.repeat(g, timer=time.process_time, number=calls, repeat=5)) for g in (lambda: None, f))
    return (full - empty) / calls * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=ROOT / "build" / "benchmarks" / "overhead_benchmark", help="built with -DGLADE_BENCHMARKS=ON")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds, each of all three (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    options = parser.parse_args()
    try:
        import torch

        torch.set_num_threads(1)
    except ImportError:
        torch = None
        print("PyTorch is not installed: going on without")

    measure = {"C++": lambda: cpp_times(options.program), "Python": lambda: python_times(glade)}
    if torch is not None:
        measure["PyTorch"] = lambda: python_times(torch)
    rounds = [{name: times() for name, times in measure.items()} for _ in range(options.rounds)]
    best = {name: {what: min(r[name][what] for r in rounds) for what in CPP_NAMES} for name in measure}
    print(f"{'microseconds':14}" + "".join(f"{what:>12}" for what in CPP_NAMES))
    for name, times in best.items():
        print(f"{name:14}" + "".join(f"{times[what]:12.3f}" for what in CPP_NAMES))
    print(f"{'Python / C++':14}" + "".join(f"{best['Python'][what] / best['C++'][what]:12.2f}" for what in CPP_NAMES))
    if options.output:
        versions = {"glade": glade.__version__, "python": platform.python_version(), "torch": torch and torch.__version__}
        options.output.write_text(json.dumps({"versions": versions, "best": best, "rounds": rounds}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Times fla's kernels (flash-linear-attention) on the shapes of linear_attention_sweep, beside the times in the sweep's file.

    linear_attention_sweep --json sweep.json
    sweep_fla.py sweep.json --compile 16 --time-limit 450
    sweep_fla.py sweep.json --json fla.jsonl --time-limit 150

fla compiles its kernels anew for every number of heads and every size of a head, which takes longer than to time them. --compile does
it in many processes at once: they call fla with few tokens, which needs the same kernels, and Triton keeps what it compiles in
TRITON_CACHE_DIR. A list of the shapes lies there too, so that a second run goes on where the first stopped. The run without --compile
times one shape after another in one process, the compiled ones first.

A shape is timed as the sweep times glade: the median of five samples of calls in a row, on inputs that take turns so that no cache
holds them. The forward pass returns the final state as well, as glade's does; with the backward pass fla is called without. All inputs
of a shape share one cu_seqlens, for which fla keeps indices. fla's chunk functions are timed, and fused_recurrent where sequences are
short or values have gates; the faster one counts. Every kernel is tuned again for every shape, over --configurations candidates.

--json adds a line for each shape as it comes. A run with the same file leaves out the shapes that it has with as many candidates, and
counts the smallest time of all lines; --below 1.5 --configurations 8 times those shapes again at which glade is less than 1.5 times as
fast. With --time-limit 0 the file is printed, which needs no GPU.

Shapes that fla does not compute are counted with its error. In float32 fla's products have one TF32 part, glade's three; the
environment variable TRITON_F32_DEFAULT=tf32x3, set for both runs, gives fla three. The backward pass of chunk_simple_gla on Hopper is
timed though fla refuses it (see compare_fla.py).
"""
import argparse
import collections
import csv
import dataclasses
import importlib.util
import json
import os
import re
import statistics
import sys
import time

import fla_tuning
import worker_pool

PASSES = ("forward", "forward_backward")
CACHE_BYTES, MOST_TURNS = 128 << 20, 8  # the sweep's: inputs together are larger, or as many
SAMPLE, LONG = 0.01, 0.02  # seconds of a sample; of a call that is sampled three times
RECURRENT_LENGTH = 512  # up to which fused_recurrent is timed as well


@dataclasses.dataclass
class Shape:
    """A row of the sweep. ends: the boundaries of packed sequences; microseconds: glade's, of each pass."""

    label: str
    sequences: int
    length: int
    heads: int
    K: int
    V: int
    gates: str
    dtype: str
    ends: list | None
    bytes: float
    microseconds: dict

    def has(self, gate):
        return gate in self.gates.split("+")

    def forms(self):
        """fla's functions that compute it."""
        chunk = not self.has("gv")
        return ["chunk"] * chunk + ["recurrent"] * (not chunk or self.length <= RECURRENT_LENGTH)

    def smallest(self):
        """One with few tokens that needs the same kernels: batch and sizes are constants in them, lengths are not."""
        tokens = min(self.ends[-1] if self.ends else self.length, fla_tuning.FEW_TOKENS)
        return dataclasses.replace(self, length=tokens, ends=self.ends and [0, tokens], bytes=CACHE_BYTES)


def parse(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_sweep(path):
    """-> {label: Shape}, and the labels of packed sequences whose lengths the file does not have"""
    try:
        with open(path, newline="") as file:
            if path.endswith(".csv"):
                rows = [{name: parse(text) for name, text in row.items()} for row in csv.DictReader(file)]
            else:
                rows = json.load(file)["rows"]
        shapes = {}
        for row in rows:
            sizes = {name: row[name] for name in ("sequences", "length", "heads", "K", "V", "gates", "dtype")}
            label = "B{sequences}_T{length}_H{heads}_K{K}_V{V} {gates} {dtype}".format(**sizes) + " packed" * row["packed"]
            shapes[label] = Shape(label, **sizes, ends=row.get("cu_seqlens"), bytes=row["forward_floor_bytes"],
                                  microseconds={name: row[f"{name}_us"] for name in PASSES})
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"sweep_fla.py: {path} cannot be read as rows of linear_attention_sweep: {error!r}")
    return shapes, [label for label, shape in shapes.items() if label.endswith("packed") and not shape.ends]


def read_lines(path):
    """Those of a file of earlier runs; one that was cut off does not count."""
    if not path or not os.path.exists(path):
        return []
    with open(path, "a+") as file:
        file.seek(0)
        text = file.read()
        if text and not text.endswith("\n"):
            file.write("\n")
    return [line for line in map(parse, text.splitlines()) if isinstance(line, dict)]


def add_line(path, line):
    if path:
        with open(path, "a") as file:
            file.write(json.dumps(line) + "\n")


class Fla:
    """fla's kernels, in a process of their own."""

    def __init__(self, compiles, configurations):
        self.compiles = compiles
        self.forget = fla_tuning.tune_briefly(configurations, fla_tuning.only_compile if compiles else fla_tuning.time_briefly)
        import torch
        from fla.ops import gla, simple_gla
        from fla.ops.common import chunk_o
        chunk_o.IS_NVIDIA_HOPPER = False  # see above
        self.torch = torch
        torch.cuda.init()
        self.functions = {  # by form, and whether keys have gates
            ("chunk", True): lambda gk, **x: gla.chunk_gla(g=gk, **x),
            ("chunk", False): simple_gla.chunk_simple_gla,
            ("recurrent", True): gla.fused_recurrent_gla,
            ("recurrent", False): simple_gla.fused_recurrent_simple_gla,
        }

    def seconds(self, call):
        call()
        first = fla_tuning.seconds_of(self.torch, call)
        calls = min(max(int(SAMPLE / first), 1), 100)
        return statistics.median(fla_tuning.seconds_of(self.torch, call, calls) for _ in range(3 if first > LONG else 5))

    def inputs(self, shape):
        """The arguments of fla's functions, and the gradient of the output."""
        torch, dtype, H = self.torch, getattr(self.torch, shape.dtype), shape.heads
        rows = (1, shape.ends[-1], H) if shape.ends else (shape.sequences, shape.length, H)

        def random(*sizes):
            return torch.randn(*rows, *sizes, device="cuda", dtype=dtype)

        x = dict(q=random(shape.K), k=random(shape.K), v=random(shape.V))
        for name, sizes in (("g", ()), ("gk", (shape.K,)), ("gv", (shape.V,))):
            if shape.has(name):
                x[name] = torch.nn.functional.logsigmoid(random(*sizes)) / 16
        for tensor in x.values():
            tensor.requires_grad_()
        if shape.has("g_gamma"):  # lightning attention's, of the second of eight layers
            x["g_gamma"] = -8 / H * (1 - 1 / 8) * torch.arange(H, device="cuda", dtype=torch.float32)
        return x, random(shape.V)

    def measure(self, shape, form, what):
        """Seconds of a call; 0 where it only compiles."""
        torch, function, turn = self.torch, self.functions[form, shape.has("gk")], 0
        rotation = [self.inputs(shape) for _ in range(int(min(MOST_TURNS, 1 + CACHE_BYTES / shape.bytes)))]
        options = dict(output_final_state=what == "forward")
        if shape.ends:
            options["cu_seqlens"] = torch.tensor(shape.ends, device="cuda")

        def call():
            nonlocal turn
            x, gradient = rotation[turn % len(rotation)]
            turn += 1
            with torch.set_grad_enabled(what != "forward"):
                o = function(**x, **options)[0]
            if what != "forward":
                torch.autograd.grad(o, [tensor for tensor in x.values() if tensor.requires_grad], gradient)

        self.forget()
        if not self.compiles:
            return self.seconds(call)
        call()
        torch.cuda.synchronize()
        return 0

    def __call__(self, shape):
        """-> ({pass: {form: microseconds}}, {"pass form": error}), and whether the GPU can do no more for this process"""
        times, errors = {name: {} for name in PASSES}, {}
        for form in shape.forms():
            for name in PASSES:
                try:
                    times[name][form] = 1e6 * self.measure(shape.smallest() if self.compiles else shape, form, name)
                except Exception as error:
                    errors[f"{name} {form}"] = str(error).strip().partition("\n")[0][:200] or repr(error)
                    if "CUDA error" in str(error):
                        return (times, errors), True
                self.torch.cuda.empty_cache()
        return (times, errors), False


def compiled_list():
    """The file that names the shapes whose kernels lie in Triton's cache."""
    folder = os.environ.get("TRITON_CACHE_DIR") or os.path.expanduser("~/.triton/cache")
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, "sweep_fla.jsonl")


class Results:
    """The lines of --json, and the table that they make."""

    def __init__(self, shapes, path):
        self.shapes, self.path, self.lines = shapes, path, read_lines(path)

    def tried(self):
        """The labels of shapes that have lines."""
        lines = {line["shape"] for line in self.lines}
        return [label for label in self.shapes if label in lines]

    def best(self, label, name):
        """The least microseconds of a pass and the form that takes them, or None."""
        times = [(us, form) for line in self.lines if line["shape"] == label for form, us in line.get(name, {}).items()]
        return min(times, default=None)

    def ratio(self, label, name):
        best = self.best(label, name)
        return best and best[0] / self.shapes[label].microseconds[name]

    def add(self, shape, configurations, times, errors):
        self.lines.append({"shape": shape.label, "configurations": configurations, **times, "glade": shape.microseconds, "errors": errors})
        add_line(self.path, self.lines[-1])

    def print_row(self, label):
        cells = []
        for name in PASSES:
            best = self.best(label, name)
            theirs = f"{best[0]:9.1f} {self.ratio(label, name):6.2f} {best[1]:9}" if best else " " * 26
            cells.append(f"{self.shapes[label].microseconds[name]:9.1f} {theirs}")
        print(f"{label:57} {' '.join(cells)}".rstrip(), flush=True)

    def print_summary(self, no_lengths):
        tried = set(self.tried())
        for name in PASSES:
            ratios = {label: self.ratio(label, name) for label in self.shapes if self.best(label, name)}
            slower = {label: ratio for label, ratio in ratios.items() if ratio < 1}
            mean = f", fla takes {statistics.geometric_mean(ratios.values()):.2f} times as long in the geometric mean" if ratios else ""
            print(f"\n{name}: {len(ratios)} of {len(self.shapes)} shapes measured, glade is slower at {len(slower)}{mean}")
            for label, ratio in sorted(slower.items(), key=lambda item: item[1]):
                print(f"  slower: {label}: {ratio:.2f}")
            reasons = collections.Counter(self.reason(label, name) for label in tried - set(ratios))
            reasons["the sweep's file has no lengths of packed sequences (its --json has)"] = len(set(no_lengths) - tried)
            reasons["not tried yet"] = len(set(self.shapes) - tried - set(no_lengths))
            for reason, count in reasons.most_common():
                if count:
                    print(f"  not measured: {count}: {reason}")

    def reason(self, label, name):
        """The last error of a pass, without its numbers."""
        errors = [error for line in self.lines if line["shape"] == label for key, error in line["errors"].items() if key.split()[0] == name]
        return re.sub(r"\d[\d.]*", "N", errors[-1]) if errors else "no result"


def compile_all(pool, shapes, configurations):
    path, start, count = compiled_list(), time.monotonic(), 0
    done = {(line["shape"], line["configurations"]) for line in read_lines(path)}
    left = [shape for shape in shapes if (shape.label, configurations) not in done]
    print(f"{len(shapes) - len(left)} of {len(shapes)} shapes are compiled")

    def keep(shape, seconds, answer, error):
        nonlocal count
        count += 1
        errors = answer[1].values() if answer else [error]
        if not errors:
            add_line(path, {"shape": shape.label, "configurations": configurations})
        print(f"{count:4}/{len(left)} {time.monotonic() - start:6.0f} s {seconds:6.1f} s  {shape.label}", *errors, sep="  ", flush=True)

    pool.run(left, keep)
    print(f"{count} of {len(left)} shapes done in {time.monotonic() - start:.0f} s")


def time_all(pool, shapes, configurations, results):
    compiled = {(line["shape"], line["configurations"]) for line in read_lines(compiled_list())}
    done = {line["shape"] for line in results.lines if line["configurations"] == configurations}
    columns = f"{'glade us':>9} {'fla us':>9} {'ratio':>6} {'form':9}"
    print(f"{'forward, then forward with backward':57} {columns} {columns}")
    for label in results.tried():
        results.print_row(label)
    left = [shape for shape in shapes if shape.label not in done]
    left.sort(key=lambda shape: (shape.label, configurations) not in compiled)

    def keep(shape, _, answer, error):
        results.add(shape, configurations, *(answer or ({}, {name: error for name in PASSES})))
        results.print_row(shape.label)

    pool.run(left, keep)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", help="file of linear_attention_sweep --json, or --csv, which has no lengths of packed sequences")
    parser.add_argument("--json", help="file for what was measured, a line for each shape; a run goes on where another stopped")
    parser.add_argument("--compile", type=int, default=0, metavar="PROCESSES", help="compile the kernels in so many processes, and time nothing")
    parser.add_argument("--configurations", type=int, default=2, help="most candidates of each kernel in tuning, 0 for all (default: %(default)s)")
    parser.add_argument("--shapes", type=int, help="take so many shapes, spread evenly over the sweep (default: all)")
    parser.add_argument("--below", type=float, help="take the shapes where fla's time is less than so many times glade's by --json's file")
    parser.add_argument("--shape-limit", type=float, default=150, help="seconds after which a shape is given up (default: %(default)s)")
    parser.add_argument("--time-limit", type=float, default=float("inf"), help="seconds after which the program stops")
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.time_limit
    shapes, no_lengths = read_sweep(arguments.sweep)
    results = Results(shapes, arguments.json)
    taken = [shape for label, shape in shapes.items() if label not in no_lengths]
    if arguments.shapes:
        taken = [taken[i * len(taken) // arguments.shapes] for i in range(min(arguments.shapes, len(taken)))]
    if arguments.below:
        taken = [shape for shape in taken if min((results.ratio(shape.label, x) or float("inf") for x in PASSES)) < arguments.below]
    missing = [name for name in ("torch", "triton", "fla") if importlib.util.find_spec(name) is None]
    if missing and arguments.time_limit > 0:
        sys.exit(f"sweep_fla.py: fla is not measured, {missing[0]} is not installed")
    pool = worker_pool.Pool(max(arguments.compile, 1), arguments.shape_limit, deadline, Fla, bool(arguments.compile), arguments.configurations)
    try:
        if arguments.compile:
            compile_all(pool, taken, arguments.configurations)
        else:
            time_all(pool, taken, arguments.configurations, results)
            results.print_summary(no_lengths)
    except worker_pool.NotStarted:
        sys.exit("sweep_fla.py: fla is not measured, its process did not start")


if __name__ == "__main__":
    main()

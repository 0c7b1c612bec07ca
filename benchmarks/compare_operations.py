"""Times glade's operations beside PyTorch's on the CPU, or against the rate of a copy on a GPU.

    compare_operations.py [--device cpu] [--elements 2^20] [--threads 2] [--filter TEXT[,TEXT]...] [--rounds N] [--out FOLDER]

A row is an operation on inputs of a layout and a dtype: contiguous, permuted, or broadcast. Both libraries run in turns in one process.
The time of a round is that of the fastest call of a burst, on a GPU the mean of a burst; the time of a row is the median of the rounds.
Rows are printed as they are measured, with the ratio of glade's time to PyTorch's, where that is installed, and the share that a row
reaches of a copy's bytes per second. Copies come first, then float32 and bfloat16. At the end, or where the program is interrupted,
it prints the rows that miss the aim (1.2 times PyTorch's time on the CPU; on a GPU 90% of the copy's rate, or PyTorch's time), the
slowest first, and the geometric mean. Operations that do not run, or do not fit in memory, are named and left out.
--out writes all rows to FOLDER/operations.csv, the slowest first.
"""
import argparse
import csv
import functools
import math
import os
import signal
import statistics
import sys
import time

from compare_cpu import fastest


def power(text):
    base, _, exponent = text.partition("^")
    return int(base) ** int(exponent or 1)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--elements", type=power, default=2**20, help="elements of a large operand, an even power of two (default: 2^20)")
    parser.add_argument("--threads", type=int, default=2, help="number of threads (default: %(default)s)")
    parser.add_argument("--filter", default="", help="only rows whose names and dtypes contain one of these")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds, in which both libraries take turns (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.03, help="seconds of a burst (default: %(default)s)")
    parser.add_argument("--out", help="folder for operations.csv")
    options = parser.parse_args()
    if options.elements < 2**12 or math.isqrt(options.elements) ** 2 != options.elements:
        parser.error("--elements must be a square of at least 2^12")
    return options


UNARY = ("exp log sqrt rsqrt reciprocal abs neg sin cos tanh erf expm1 log1p floor ceil round trunc sign sigmoid square "
         "isnan isfinite").split()
ACTIVATIONS = "relu gelu silu softplus logsigmoid softmax0 softmax1 log_softmax1".split()
REDUCTIONS = "sum mean amax amin prod var std logsumexp argmax norm any all".split()


def rows(side, device):
    """Yields (name, dtype, inputs, function). An input is a description that Inputs makes a tensor of; a function takes the library
    (its names are the same in both) and the tensors."""
    here = {"device": device}
    flat, permuted, cube = "flat", "permuted", "cube"

    def activation(name):
        if name.startswith(("softmax", "log_softmax")):
            return lambda t, x, f=name[:-1], d=int(name[-1]): getattr(t.nn.functional, f)(x, d)
        return lambda t, x, f=name: getattr(t.nn.functional, f)(x)

    for name in UNARY:
        f = lambda t, x, f=name: getattr(t, f)(x)
        for layout in (flat, permuted):
            yield f"{name} {layout}", "float32", [layout], f
        if name in ("exp", "log", "sqrt", "abs", "neg", "sin", "tanh", "erf", "sigmoid"):
            yield f"{name} {flat}", "float64", [flat], f
            yield f"{name} {flat}", "bfloat16", [flat], f
        if name in ("abs", "neg"):
            yield f"{name} {flat}", "float16", [flat], f
        if name in ("abs", "neg", "sign", "square"):
            yield f"{name} {flat}", "int64", [flat], f
    for name in ACTIVATIONS:
        for dtype in ("float32", "bfloat16") + (("float64",) if name in ("gelu", "softmax1") else ()):
            yield f"{name} {flat}", dtype, [flat], activation(name)
        yield f"{name} {permuted}", "float32", [permuted], activation(name)
    yield "gelu tanh flat", "float32", [flat], lambda t, x: t.nn.functional.gelu(x, approximate="tanh")

    binary = {"add": lambda t, x, y: x + y, "sub": lambda t, x, y: x - y, "mul": lambda t, x, y: x * y,
              "div": lambda t, x, y: x / y, "maximum": lambda t, x, y: t.maximum(x, y), "pow": lambda t, x, y: x ** y,
              "remainder": lambda t, x, y: x % y, "floor_divide": lambda t, x, y: x // y,
              "less": lambda t, x, y: x < y, "equal": lambda t, x, y: x == y}
    for name, f in binary.items():
        for layout in ("flat", "permuted", "row", "column", "scalar"):
            if name in ("maximum", "remainder", "floor_divide", "equal") and layout == "scalar":
                continue
            yield f"{name} {layout}", "float32", [flat, layout], f
        for dtype in ("float64", "bfloat16", "float16", "int64", "int32"):
            if name in ("add", "mul", "less", "maximum") or (name in ("div", "pow") and dtype == "float64"):
                yield f"{name} flat", dtype, [flat, flat], f
    for exponent in (2, 3, 0.5, 1.7):
        yield f"pow {exponent}", "float32", [flat], lambda t, x, e=exponent: x ** e
    yield "rsub scalar", "float32", [flat], lambda t, x: 1.5 - x
    yield "add both permuted", "float32", [permuted, permuted], lambda t, x, y: x + y
    yield "outer product", "float32", ["column", "row"], lambda t, x, y: x * y
    yield "add of scalar in place", "float32", [flat], lambda t, x: x.add_(0.0)
    yield "mul in place", "float32", [flat, "ones"], lambda t, x, y: x.mul_(y)
    yield "clamp", "float32", [flat], lambda t, x: t.clamp(x, 0.2, 0.8)
    yield "lerp by hand", "float32", [flat, flat], lambda t, x, y: x + 0.3 * (y - x)
    for layout in (flat, permuted, "row"):
        yield f"where {layout}", "float32", ["mask", flat, layout], lambda t, m, x, y: t.where(m, x, y)
    yield "masked_fill", "float32", [flat, "mask"], lambda t, x, m: x.masked_fill(m, 0.0)
    yield "masked_fill row", "float32", [flat, "mask row"], lambda t, x, m: x.masked_fill(m, 0.0)
    yield "and", "bool", ["mask", "mask"], lambda t, x, y: x & y
    yield "not", "bool", ["mask"], lambda t, x: ~x
    yield "bitwise and", "int64", [flat, flat], lambda t, x, y: x & y

    for name in REDUCTIONS:
        if name in ("any", "all"):
            f = lambda t, x, d=None, f=name: getattr(x, f)() if d is None else getattr(x, f)(d)
            cases = [("mask", "bool")]
        else:
            def f(t, x, d=None, f=name):
                if f == "norm":
                    return x.norm() if d is None else x.norm(dim=d)
                if f == "logsumexp":
                    return t.logsumexp(x, (0, 1) if d is None else d)
                return getattr(t, f)(x) if d is None else getattr(t, f)(x, d)
            cases = [(flat, "float32")]
            if name in ("sum", "mean", "amax", "argmax"):
                cases += [(flat, "bfloat16"), (flat, "float16"), (flat, "float64")]
            if name in ("sum", "amax", "argmax", "prod"):
                cases += [(flat, "int64")]
        for layout, dtype in cases:
            yield f"{name} all", dtype, [layout], f
            yield f"{name} over rows", dtype, [layout], lambda t, x, f=f: f(t, x, 0)
            yield f"{name} over columns", dtype, [layout], lambda t, x, f=f: f(t, x, 1)
        if cases[0][1] == "float32":
            yield f"{name} over middle", "float32", [cube], lambda t, x, f=f: f(t, x, 1)
            yield f"{name} over permuted", "float32", [permuted], lambda t, x, f=f: f(t, x, 1)
    yield "layer_norm", "float32", [flat], lambda t, x: t.nn.functional.layer_norm(x, (side,))
    yield "layer_norm", "bfloat16", [flat], lambda t, x: t.nn.functional.layer_norm(x, (side,))
    yield "layer_norm of 64", "float32", ["narrow"], lambda t, x: t.nn.functional.layer_norm(x, (64,))
    yield "softmax of 64", "float32", ["narrow"], lambda t, x: t.nn.functional.softmax(x, 1)
    yield "cross_entropy", "float32", [flat, "labels"], lambda t, x, y: t.nn.functional.cross_entropy(x, y)
    yield "mse_loss", "float32", [flat, flat], lambda t, x, y: t.nn.functional.mse_loss(x, y)
    for d in (0, 1):
        for dtype in ("float32", "int64"):
            yield f"cumsum {d}", dtype, [flat], lambda t, x, d=d: t.cumsum(x, d)
        yield f"sort {d}", "float32", [flat], lambda t, x, d=d: t.sort(x, d)
        yield f"topk 8, {d}", "float32", [flat], lambda t, x, d=d: t.topk(x, 8, d)
        yield f"cat {d}", "float32", [flat, flat], lambda t, x, y, d=d: t.cat([x, y], d)
        yield f"stack {d}", "float32", [flat, flat], lambda t, x, y, d=d: t.stack([x, y], d)
        yield f"flip {d}", "float32", [flat], lambda t, x, d=d: t.flip(x, (d,))
        yield f"roll {d}", "float32", [flat], lambda t, x, d=d: t.roll(x, 3, d)
        yield f"index_select {d}", "float32", [flat, "order"], lambda t, x, i, d=d: t.index_select(x, d, i)
        yield f"gather {d}", "float32", [flat, "indices"], lambda t, x, i, d=d: t.gather(x, d, i)
        yield f"scatter_add {d}", "float32", ["zeros", "indices", flat], lambda t, z, i, x, d=d: t.scatter_add(z, d, i, x)
        yield f"index_add {d}", "float32", ["zeros", "order", flat], lambda t, z, i, x, d=d: t.index_add(z, d, i, x)
    yield "sort", "int64", [flat], lambda t, x: t.sort(x, 1)
    yield "argsort", "float32", [flat], lambda t, x: t.argsort(x, 1)
    yield "sort all", "float32", [flat], lambda t, x: t.sort(x.reshape(-1), 0)

    for dtype in ("float32", "bfloat16", "float64", "int64", "uint8"):
        yield "clone", dtype, [flat], lambda t, x: x.clone()
        yield "copy transposed", dtype, [permuted], lambda t, x: x.contiguous()
    yield "copy heads", "float32", ["heads"], lambda t, x: x.permute(0, 2, 1, 3).contiguous()
    yield "copy heads back", "float32", ["heads"], lambda t, x: x.permute(0, 2, 3, 1).contiguous()
    yield "copy reversed dims", "float32", [cube], lambda t, x: x.permute(2, 1, 0).contiguous()
    yield "copy 1 0 2", "float32", [cube], lambda t, x: x.permute(1, 0, 2).contiguous()
    yield "copy every second", "float32", [flat], lambda t, x: x[:, ::2].contiguous()
    yield "copy half of rows", "float32", [flat], lambda t, x: x[:, : side // 2].contiguous()
    yield "copy expanded row", "float32", ["row"], lambda t, x: x.expand(side, side).contiguous()
    yield "copy expanded column", "float32", ["column"], lambda t, x: x.expand(side, side).contiguous()
    yield "repeat", "float32", ["row"], lambda t, x: x.repeat(side, 1).contiguous()
    for source, target in (("float32", "bfloat16"), ("bfloat16", "float32"), ("float32", "float16"), ("float16", "float32"),
                           ("float32", "float64"), ("float32", "int64"), ("int64", "float32"), ("uint8", "float32")):
        yield f"convert to {target}", source, [flat], lambda t, x, d=target: x.to(getattr(t, d))
    yield "tril", "float32", [flat], lambda t, x: t.tril(x)
    yield "zeros", "float32", [], lambda t: t.zeros(side, side, **here)
    yield "full", "float32", [], lambda t: t.full((side, side), 1.5, **here)
    yield "arange", "int64", [], lambda t: t.arange(side * side, **here)

    yield "mask select", "float32", [flat, "mask"], lambda t, x, m: x[m]
    yield "mask select sparse", "float32", [flat, "sparse mask"], lambda t, x, m: x[m]
    yield "mask rows", "float32", [flat, "mask line"], lambda t, x, m: x[m]
    yield "mask assign number", "float32", [flat, "sparse mask"], lambda t, x, m: x.__setitem__(m, 0.5)
    yield "mask assign", "float32", [flat, "mask"], lambda t, x, m: x.__setitem__(m, x[m])
    yield "nonzero", "bool", ["mask"], lambda t, m: t.nonzero(m)
    yield "index rows", "float32", [flat, "order"], lambda t, x, i: x[i]
    yield "index elements", "float32", [flat, "order", "order"], lambda t, x, i, j: x[i, j]
    yield "embedding", "float32", [flat, "indices row"], lambda t, x, i: t.nn.functional.embedding(i, x)
    yield "assign slice", "float32", [flat, "ones"], lambda t, x, y: x.__setitem__(slice(1, side - 9), y[1 : side - 9])

    for n in (16, 64, 256, 1024):
        yield f"matmul {n}", "float32", [f"square {n}", f"square {n}"], lambda t, x, y: x @ y
    yield "matmul 256", "float64", ["square 256", "square 256"], lambda t, x, y: x @ y
    yield "matmul 64", "int64", ["square 64", "square 64"], lambda t, x, y: x @ y
    yield "matmul transposed", "float32", ["square 256", "square 256"], lambda t, x, y: x.T @ y.T
    yield "matrix times vector", "float32", [flat, "row"], lambda t, x, y: x @ y
    yield "batched matmul", "float32", ["batch", "batch"], lambda t, x, y: x @ y
    yield "linear 1 row", "float32", ["one row", flat], lambda t, x, w: t.nn.functional.linear(x, w)
    yield "linear", "float32", ["narrow", "weight"], lambda t, x, w: t.nn.functional.linear(x, w)
    yield "rand", "float32", [], lambda t: t.rand(side, side, **here)
    yield "randn", "float32", [], lambda t: t.randn(side, side, **here)
    yield "randint", "int64", [], lambda t: t.randint(0, 100, (side, side), **here)
    yield "randperm", "int64", [], lambda t: t.randperm(side * side, **here)
    yield "dropout", "float32", [flat], lambda t, x: t.nn.functional.dropout(x, 0.1, True)
    yield "multinomial", "float32", ["positive"], lambda t, x: t.multinomial(x, 1)

    def with_gradient(f):
        def run(t, *inputs):
            leaves = [x.detach().requires_grad_() for x in inputs]
            f(t, *leaves).sum().backward()
        return run
    for name in ("gelu", "silu", "softmax1", "relu"):
        yield f"gradient of {name}", "float32", [flat], with_gradient(activation(name))
    for name in ("tanh", "exp", "sin", "log1p", "sigmoid"):
        yield f"gradient of {name}", "float32", [flat], with_gradient(lambda t, x, f=name: getattr(t, f)(x))
    for name in ("mul", "div", "pow"):
        yield f"gradient of {name}", "float32", [flat, "positive"], with_gradient(binary[name])
    yield "gradient of mul row", "float32", [flat, "row"], with_gradient(binary["mul"])
    yield "gradient of layer_norm", "float32", [flat], with_gradient(lambda t, x: t.nn.functional.layer_norm(x, (side,)))
    yield "gradient of matmul 256", "float32", ["square 256", "square 256"], with_gradient(lambda t, x, y: x @ y)
    yield "gradient of embedding", "float32", [flat], with_gradient(lambda t, x: x[:64].sum(1))


class Inputs:
    """Tensors of both libraries with the same numbers. Each is made once: for a large row that takes longer than what is timed."""

    def __init__(self, side, libraries, device):
        import numpy
        self.numpy, self.side, self.libraries, self.device = numpy, side, libraries, device
        self.random = numpy.random.default_rng(0)
        self.values = functools.cache(self.draw)
        self.make = functools.cache(self.convert)

    def draw(self, kind, dtype):
        np, n = self.numpy, self.side
        shapes = {"row": (n,), "column": (n, 1), "scalar": (), "cube": (16, n // 16, n), "heads": (8, n // 8, 16, n // 16),
                  "narrow": (n * n // 64, 64), "weight": (256, 64), "batch": (64, n // 16, n // 16), "one row": (1, n),
                  "mask row": (n,), "mask line": (n,)}
        shape = (int(kind.split()[1]),) * 2 if kind.startswith("square") else shapes.get(kind, (n, n))
        if kind.startswith(("mask", "sparse")):
            return self.random.random(shape, "float32") < (0.05 if kind.startswith("sparse") else 0.5)
        if kind in ("indices", "order", "labels", "indices row"):
            return self.random.integers(0, n, (n, n) if kind == "indices" else (n,))
        if kind in ("zeros", "ones"):
            return np.full(shape, float(kind == "ones"), "float32")
        if dtype in ("int64", "int32", "uint8"):
            return self.random.integers(1, 50, shape).astype(dtype)
        # Above 0, so that log, sqrt and pow take all of it.
        return self.random.random(shape, "float64" if dtype == "float64" else "float32") * 3 + 0.05

    def convert(self, kind, dtype):
        values = self.values("flat" if kind in ("permuted", "positive") else kind, "float32" if dtype.endswith("float16") else dtype)
        tensors = []
        for t in self.libraries:
            x = t.tensor(values).to(self.device)
            if values.dtype.kind == "f":
                x = x.to(getattr(t, dtype))
            tensors.append(x.t() if kind == "permuted" else x)
        return tensors


def memory(*tensors):
    """Bytes of glade's tensors, and of those in tuples."""
    total = 0
    for x in tensors:
        if isinstance(x, tuple):
            total += memory(*x)
        elif x is not None:
            total += x.nbytes
    return total


def burst(function, seconds, wait):
    """Seconds of the fastest call in about so many seconds, at least one. On a GPU, of a call among up to 20."""
    if wait is None:
        return fastest(function, seconds) / 1e3

    def calls(count):
        start = time.perf_counter()
        for _ in range(count):
            function()
        wait()
        return (time.perf_counter() - start) / count
    first = calls(1)
    count = min(20, int(seconds / first))
    return calls(count) if count > 1 else first


def measure(functions, options, waits):
    for function, wait in zip(functions, waits):
        function()
        if wait is not None:
            wait()
    rounds = []
    start = time.perf_counter()
    while len(rounds) < options.rounds and (not rounds or time.perf_counter() - start < 10 * options.seconds * len(functions)):
        rounds.append([burst(f, options.seconds, wait) for f, wait in zip(functions, waits)])
    return [statistics.median(times) for times in zip(*rounds)]


def libraries_for(options):
    import glade
    found = [glade]
    try:
        import torch
        if options.device == "cpu" or torch.cuda.is_available():
            torch.set_num_threads(options.threads)
            found.append(torch)
    except ImportError:
        pass
    return found


def importance(row):
    name, dtype = row[:2]
    return (name, dtype) != ("clone", "float32"), not name.startswith(("clone", "copy")), dtype not in ("float32", "bfloat16")


def measured_rows(options):
    """Yields a dict per row; the copy of float32 is the first, whatever the filter, for it gives the rate."""
    libraries = libraries_for(options)
    waits = [None if options.device == "cpu" else t.cuda.synchronize for t in libraries]
    side = math.isqrt(options.elements)
    inputs = Inputs(side, libraries, options.device)
    copy_rate = None
    for name, dtype, kinds, function in sorted(rows(side, options.device), key=importance):
        if copy_rate is not None and not any(text in f"{name} {dtype}" for text in options.filter.split(",")):
            continue
        try:
            tensors = list(zip(*(inputs.make(kind, dtype) for kind in kinds))) or [()] * len(libraries)
            size = memory(*tensors[0], function(libraries[0], *tensors[0]))
            times = measure([lambda t=t, x=x: function(t, *x) for t, x in zip(libraries, tensors)], options, waits)
        except Exception as error:
            print(f"{name}, {dtype}: {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
            continue
        rate = size / times[0]
        copy_rate = copy_rate or rate
        torch_time = times[1] if len(times) > 1 else None
        yield dict(operation=name, dtype=dtype, glade_ms=1e3 * times[0], torch_ms=1e3 * torch_time if torch_time else None, gb_per_s=rate / 1e9,
                   ratio=times[0] / torch_time if torch_time else None, of_copy=rate / copy_rate)


HEADER = f"{'operation':28}{'dtype':10}{'glade ms':>10}{'torch ms':>10}{'ratio':>8}{'of copy':>9}"


def line(row):
    number = lambda x, form: format(x, form) if x is not None else "-"
    return (f"{row['operation']:28}{row['dtype']:10}{row['glade_ms']:10.4f}{number(row['torch_ms'], '10.4f'):>10}"
            f"{number(row['ratio'], '8.2f'):>8}{row['of_copy']:9.0%}")


def report(results, options):
    results.sort(key=lambda row: -row["ratio"] if row["ratio"] else row["of_copy"])
    ratios = [row["ratio"] for row in results if row["ratio"]]
    limit = 1.2 if options.device == "cpu" else 1.0
    misses = [row for row in results if not (row["ratio"] and row["ratio"] <= limit) and (options.device == "cpu" or row["of_copy"] < 0.9)]
    if ratios or options.device != "cpu":
        print(f"{len(misses)} of {len(results)} rows miss the aim:", HEADER, *map(line, misses), sep="\n")
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{len(ratios)} rows beside PyTorch, geometric mean {mean:.3f}, {sum(r > 1.2 for r in ratios)} above 1.2")
    if options.out and results:
        os.makedirs(options.out, exist_ok=True)
        with open(os.path.join(options.out, "operations.csv"), "w", newline="") as file:
            writer = csv.DictWriter(file, results[0].keys())
            writer.writeheader()
            writer.writerows({k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()} for row in results)


def main():
    options = arguments()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    results = []
    print(HEADER, flush=True)
    try:
        for row in measured_rows(options):
            results.append(row)
            print(line(row), flush=True)
    except KeyboardInterrupt:
        print("interrupted")
    report(results, options)


if __name__ == "__main__":
    main()

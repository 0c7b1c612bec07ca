"""Compares operations with PyTorch's on random tensors.

    PYTHONPATH=build/python tests/fuzz/operations.py [--device cuda] [--seconds 60] [--seed 0] [--only sort,topk]

Most sizes lie next to those at which kernels change. Tensors are permuted, begin behind an element or skip every second one, and hold NaN,
infinities, both zeros and many equal elements. Prints the first difference of each operation, with the options that lead to it, and exits
with 1 if there was one. PyTorch computes on the CPU, sums in float64.
"""

import argparse
import random
import sys
import time

import numpy as np

SIZES = [0, 1, 2, 3, 5, 7, 8, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1000, 1023, 1024, 1025]
SIZES += [2047, 2048, 2049, 4095, 4096, 4097, 9000, 20000]
MOST_ELEMENTS = 200_000
FLOATS = ("float32", "float64", "float16", "bfloat16")
NUMBERS = (*FLOATS, "int32", "int64")
ALL = (*NUMBERS, "uint8", "bool")
# Of results that are rounded more than once, relative to 1 + |expected|.
TOLERANCES = {"float32": 1e-4, "float64": 1e-11, "float16": 5e-3, "bfloat16": 3e-2}
SUM_TOLERANCES = {"float32": 2e-5, "float64": 1e-12, "float16": 3e-2, "bfloat16": 2e-1}  # of up to some hundred terms
CHECKS = {}


def check(function):
    """Registers a function of a Case that returns (expected, result, tolerance), or None where the draw does not suit it."""
    CHECKS[function.__name__] = function
    return function


class Case:
    """Random tensors, each in PyTorch and in glade, and what was drawn."""

    def __init__(self, seed, device):
        import glade
        import torch

        self.glade, self.torch, self.device = glade, torch, device
        self.random, self.rng, self.drawn = random.Random(seed), np.random.default_rng(seed), []

    def choose(self, options):
        self.drawn.append(self.random.choice(options))
        return self.drawn[-1]

    def shape(self):
        while True:
            shape = [self.random.choice([*SIZES, self.random.randint(1, 6000)]) for _ in range(self.random.randint(1, 3))]
            if np.prod(shape) <= MOST_ELEMENTS and (0 not in shape or self.random.random() < 0.1):
                return shape

    def values(self, shape, dtype, special=True):
        torch = self.torch
        if dtype == "bool":
            return torch.from_numpy(self.rng.random(shape) < self.random.choice([0, 0.01, 0.5, 0.99, 1]))
        if dtype not in FLOATS:
            high = self.random.choice([3, 50, 255] if dtype == "uint8" else [3, 50, 1 << 20, (1 << 31) - 1])
            return torch.from_numpy(self.rng.integers(0 if dtype == "uint8" else self.random.choice([0, -high]), high, size=shape)).to(getattr(torch, dtype))
        numbers = self.rng.standard_normal(shape)
        x = torch.from_numpy(np.round(numbers) if special and self.random.random() < 0.3 else numbers).to(getattr(torch, dtype))
        if special and self.random.random() < 0.25:
            for value in (float("nan"), float("inf"), -float("inf"), -0.0, 0.0):
                x.view(-1)[torch.from_numpy(self.rng.integers(0, max(1, x.numel()), x.numel() // 50))] = value
        return x

    def to_glade(self, x):
        if x.dtype == self.torch.bfloat16:
            return self.glade.tensor(x.float().numpy(), device=self.device).bfloat16()
        return self.glade.tensor(x.contiguous().numpy(), device=self.device)

    def pair(self, dtypes, shape=None, special=True):
        """(PyTorch's tensor, glade's) of one of the dtypes, as a view of any kind."""
        x = self.values(shape or self.shape(), self.choose(dtypes), special)
        y = self.to_glade(x)
        kind = self.random.random()
        if shape is None and x.ndim > 1 and kind < 0.25:
            dims = self.random.sample(range(x.ndim), 2)
            x, y = x.transpose(*dims), y.transpose(*dims)
        elif shape is None and x.shape[-1] > 2 and kind < 0.55:
            part = slice(1, None) if kind < 0.45 else slice(None, None, 2)
            x, y = x[..., part], y[..., part]
        self.drawn.append((tuple(x.shape), x.stride()))
        return x, y

    def dim(self, x):
        return self.choose(range(x.ndim))

    def positions(self, x, dim, shape):
        return self.torch.from_numpy(self.rng.integers(0, x.shape[dim], size=shape))

    def smaller(self, x, dim):
        """A shape of positions along dim, in part smaller than x."""
        shape = [self.random.choice([size, self.random.randint(1, size)]) for size in x.shape]
        shape[dim] = self.random.choice([1, 5, 100, x.shape[dim]])
        self.drawn.append(tuple(shape))
        return shape if np.prod(shape) <= 2 * MOST_ELEMENTS else None

    def name_of(self, x):
        return str(x.dtype).removeprefix("torch.")


@check
def sort(case):
    x, y = case.pair(ALL)
    dim, descending = case.dim(x), case.choose([False, True])
    expected = case.torch.sort(x, dim=dim, descending=descending, stable=True)
    values, positions = case.glade.sort(y, dim, descending)
    return (expected.indices, positions, 0) if case.choose([False, True]) else (expected.values, values, 0)


@check
def topk(case):
    x, y = case.pair(NUMBERS)
    dim, largest = case.dim(x), case.choose([False, True])
    if x.shape[dim] == 0:
        return None
    k = min(x.shape[dim], case.choose([1, 2, 8, 256, 257, case.random.randint(1, x.shape[dim])]))
    expected = case.torch.sort(x, dim=dim, descending=largest, stable=True)
    values, positions = case.glade.topk(y, k, dim, largest)
    return (expected.indices.narrow(dim, 0, k), positions, 0) if case.choose([False, True]) else (expected.values.narrow(dim, 0, k), values, 0)


@check
def gather(case):
    x, y = case.pair(ALL)
    dim = case.dim(x)
    shape = x.numel() and case.smaller(x, dim)
    if not shape:
        return None
    positions = case.positions(x, dim, shape)
    return case.torch.gather(x, dim, positions), case.glade.gather(y, dim, case.to_glade(positions)), 0


@check
def index_select(case):
    x, y = case.pair(ALL)
    dim = case.dim(x)
    if x.numel() == 0:
        return None
    positions = case.positions(x, dim, (min(case.choose([1, 3, 100, 4096]), 2 * x.shape[dim]),))
    return case.torch.index_select(x, dim, positions), case.glade.index_select(y, dim, case.to_glade(positions)), 0


@check
def scatter_add(case):
    x, y = case.pair((*FLOATS, "int64"), special=False)
    dim = case.dim(x)
    shape = x.numel() and case.smaller(x, dim)
    if not shape:
        return None
    positions, source = case.positions(x, dim, shape), case.values(shape, case.name_of(x), special=False)
    wide = case.torch.int64 if x.dtype == case.torch.int64 else case.torch.float64
    expected = case.torch.scatter_add(x.to(wide), dim, positions, source.to(wide))
    return expected, case.glade.scatter_add(y, dim, case.to_glade(positions), case.to_glade(source)), SUM_TOLERANCES.get(case.name_of(x), 0)


@check
def reductions(case):
    x, y = case.pair(FLOATS, special=False)
    dim, name = case.dim(x), case.choose(["amax", "amin", "mean", "norm", "sum", "std"])
    if x.shape[dim] < 2:
        return None
    return getattr(x.double(), name)(dim=dim), getattr(y, name)(dim=dim), TOLERANCES[case.name_of(x)]


@check
def argmax(case):
    x, y = case.pair(NUMBERS, special=False)
    dim, name = case.dim(x), case.choose(["argmax", "argmin"])
    if x.numel() == 0:
        return None
    return case.torch.from_numpy(np.asarray(getattr(np, name)(x.double().numpy(), axis=dim))), getattr(y, name)(dim), 0


@check
def any_and_all(case):
    x, y = case.pair(ALL)
    name, dim = case.choose(["any", "all"]), case.choose([None, *range(x.ndim)])
    return (getattr(x, name)() if dim is None else getattr(x, name)(dim)).bool(), getattr(y, name)() if dim is None else getattr(y, name)(dim), 0


@check
def triangle(case):
    x, y = case.pair(ALL)
    name, diagonal = case.choose(["tril", "triu"]), case.choose([0, case.random.randint(-5, 5), case.random.randint(-3000, 3000)])
    return (getattr(x, name)(diagonal), getattr(y, name)(diagonal), 0) if x.ndim > 1 else None


@check
def with_rows_and_columns(case):
    x, y = case.pair(NUMBERS)
    shape = list(x.shape)
    other = case.values(case.choose([shape, [1], shape[-1:], [*shape[:-1], 1]]), case.name_of(x))
    name = case.choose(["add", "sub", "mul", "maximum", "eq", "lt", "ge"])
    return getattr(case.torch, name)(x, other), getattr(case.glade, name)(y, case.to_glade(other)), 0


@check
def powers(case):
    x, y = case.pair(FLOATS)
    exponent = case.choose([2, 3, 0.5, 1.7, -1, 1, 0, -0.5, 4])
    with np.errstate(all="ignore"):  # NumPy's powers: PyTorch's of -infinity and 0.5 is NaN
        # And so is NumPy's, where the exponent is one number.
        values = x.double().numpy()
        expected = case.torch.from_numpy(np.asarray(np.power(values, np.full_like(values, exponent))))
    # What this dtype cannot hold is infinite in it.
    expected[expected.abs() > case.torch.finfo(x.dtype).max] *= float("inf")
    return expected, y**exponent, TOLERANCES[case.name_of(x)]


@check
def masks(case):
    x, y = case.pair(ALL)
    mask = case.values(list(x.shape), "bool")
    if case.choose([False, True]):
        return x[mask], y[case.to_glade(mask)], 0
    x, y = x.clone(), y.clone()
    x[mask] = y[case.to_glade(mask)] = 1
    return x, y, 0


def difference(case, expected, result, tolerance):
    """What differs, in a line, or None."""
    torch = case.torch
    result = torch.from_numpy(np.asarray((result.float() if str(result.dtype).endswith("bfloat16") else result).cpu().numpy()))
    if result.shape != expected.shape:
        return f"shape {tuple(result.shape)}, expected {tuple(expected.shape)}"
    a, b = result.double(), expected.double()
    same = (a == b) | (a.isnan() & b.isnan())
    if tolerance:
        same |= (a - b).abs() <= tolerance * (1 + b.abs())
    if same.all():
        return None
    at = tuple(int(i) for i in (~same).nonzero()[0])
    return f"{int((~same).sum())} of {same.numel()} differ, at {at} {a[at].item()}, expected {b[at].item()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="of glade's tensors (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="how long (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; each later one has the next (default: %(default)s)")
    parser.add_argument("--only", default=",".join(CHECKS), help="operations, separated by commas (default: %(default)s)")
    options = parser.parse_args()
    names = options.only.split(",")
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        parser.error(f"there is no check '{unknown[0]}': {', '.join(CHECKS)}")
    try:
        import torch  # noqa: F401
    except ImportError:
        sys.exit("operations.py: needs PyTorch, whose results it expects")
    found, seed, end = {}, options.seed, time.monotonic() + options.seconds
    while seed == options.seed or time.monotonic() < end:
        case, name = Case(seed, options.device), names[seed % len(names)]
        try:
            results = CHECKS[name](case)
            message = results and difference(case, *results)
        except Exception as error:  # of either library
            message = None if "not implemented for" in str(error) else f"{type(error).__name__}: {error}"  # PyTorch lacks some types
        if message:
            if name not in found:
                print(f"{name}, --only {options.only} --seed {seed} --seconds 0, {case.drawn}: {message}", flush=True)
            found[name] = found.get(name, 0) + 1
        seed += 1
    print(f"{seed - options.seed} cases, {sum(found.values())} differ {found or ''}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""What is in a checkpoint, or in any other HDF5 file of numbers; whether it is undamaged; and what differs between two.

    python -m glade.inspect model.h5
    python -m glade.inspect model.h5 --json
    python -m glade.inspect model.h5 --verify
    python -m glade.inspect --diff a.h5 b.h5

The first two list attributes and tensors; --verify reads everything and checks all checksums.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from typing import Any

from glade import CheckpointError, HDF5Entry, HDF5File

__all__ = ["damages", "describe", "differences"]


def attributes(file: HDF5File) -> dict[str, Any]:
    """The attributes of a checkpoint, as far as they are there."""
    found: dict[str, Any] = {name: file.string_attribute(name) for name in ("format", "created", "library_version")}
    found |= {name: file.integer_attribute(name) for name in ("format_version", "step")}
    config = file.string_attribute("config")
    try:
        found["config"] = json.loads(config) if config else config
    except (ValueError, RecursionError):  # no JSON, or nested too deeply
        found["config"] = config
    return {name: value for name, value in found.items() if value is not None}


def size(entry: HDF5Entry) -> int:
    """The bytes of the values of a tensor."""
    return math.prod(entry.shape) * entry.dtype.itemsize


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What is in a file, as plain values: its attributes, and "tensors" with name, dtype, shape, bytes and stored_bytes each,
    "same_as" for a further name of a tensor, and instead of all that a "problem" for what cannot be read."""
    file = HDF5File(path)
    tensors = []
    for entry in file.entries:
        tensor: dict[str, Any] = {"name": entry.name}
        if entry.problem:
            tensor["problem"] = entry.problem
        else:
            tensor |= {"dtype": entry.dtype.name, "shape": list(entry.shape)}
            tensor |= {"bytes": size(entry), "stored_bytes": entry.stored_bytes}
            if entry.first_name != entry.name:
                tensor["same_as"] = entry.first_name
        tensors.append(tensor)
    return attributes(file) | {"tensors": tensors}


def damages(path: str | os.PathLike[str]) -> list[str]:
    """One line for each damaged tensor in a file. Reads everything and checks all checksums."""
    file = HDF5File(path)
    lines = []
    for entry in file.entries:
        if entry.problem:
            lines.append(f"{file.path}: {entry.name}: {entry.problem}")
        elif entry.first_name == entry.name:
            try:
                file.verify(entry.name)
            except CheckpointError as error:
                lines.append(str(error))
    return lines


def difference(a: HDF5File, b: HDF5File, name: str) -> str:
    """What differs between the values of a tensor that is in both files, or ""."""
    x, y = a.read(name), b.read(name)
    if x.dtype != y.dtype or x.shape != y.shape:
        return f"{x.dtype.name} {list(x.shape)} and {y.dtype.name} {list(y.shape)}"
    p, q = x.flatten().tolist(), y.flatten().tolist()
    distances = [abs(u - v) for u, v in zip(p, q) if u != v and not (u != u and v != v)]
    return f"{len(distances)} of {len(p)} values differ, by up to {max(distances):.3g}" if distances else ""


def differences(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> list[str]:
    """One line for each difference between two files but the time of writing."""
    first, second = HDF5File(a), HDF5File(b)
    lines = []
    p, q = attributes(first), attributes(second)
    for name in sorted((p.keys() | q.keys()) - {"created"}):
        if p.get(name) != q.get(name):
            lines.append(f"{name}: {json.dumps(p.get(name))} and {json.dumps(q.get(name))}")
    in_first, in_second = ({entry.name for entry in file.entries} for file in (first, second))
    for name in sorted(in_first | in_second):
        if name not in in_second or name not in in_first:
            lines.append(f"{name}: only in {first.path if name in in_first else second.path}")
        elif what := difference(first, second, name):
            lines.append(f"{name}: {what}")
    return lines


def print_table(description: dict[str, Any]) -> None:
    """Prints what describe() returned, a line for each tensor."""
    tensors = description.pop("tensors")
    for name, value in description.items():
        print(f"{name}: {json.dumps(value)}")
    width = max([4, *(len(tensor["name"]) for tensor in tensors)])
    print(f"{'name':{width}}  {'dtype':8}  {'bytes':>12}  shape")
    elements = total = stored = 0
    for tensor in tensors:
        if "problem" in tensor:
            print(f"{tensor['name']:{width}}  cannot be read: {tensor['problem']}")
            continue
        same = f" the same as {tensor['same_as']}" if "same_as" in tensor else ""
        print(f"{tensor['name']:{width}}  {tensor['dtype']:8}  {tensor['bytes']:12}  {tensor['shape']}{same}")
        if not same:
            elements += math.prod(tensor["shape"])
            total += tensor["bytes"]
            stored += tensor["stored_bytes"]
    print(f"{elements} elements, {total} bytes, {stored} in the file")


def verify(path: str) -> int:
    """Prints what is damaged; the exit code."""
    lines = damages(path)
    tensors = [entry for entry in HDF5File(path).entries if entry.problem or entry.first_name == entry.name]
    stored = sum(entry.stored_bytes for entry in tensors if not entry.problem)
    whole = len(tensors) - len(lines)
    print(*lines, sep="\n", end="\n" if lines else "")
    print(f"{path}: {len(lines)} tensors are damaged, {whole} are not" if lines else f"{path}: all {whole} tensors, {stored} bytes, are undamaged")
    return 1 if lines else 0


def show(options: argparse.Namespace) -> int:
    """Prints what the options ask for; the exit code."""
    if options.verify:
        return verify(options.file)
    if options.diff:
        lines = differences(*options.diff)
        print(*lines, sep="\n", end="\n" if lines else "")
        return 1 if lines else 0
    found = describe(options.file)
    is_damaged = any("problem" in tensor for tensor in found["tensors"])
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print_table(found)
    return 1 if is_damaged else 0


def main() -> int:
    """The command `python -m glade.inspect`; returns its exit code."""
    description = __doc__.split("\n")[0] + " The exit code is 1 for a damaged file, and for files that differ."
    parser = argparse.ArgumentParser(prog="python -m glade.inspect", description=description)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("file", nargs="?", help="file to show")
    what.add_argument("--diff", nargs=2, metavar="FILE", help="two files to compare; exit code 0 means that nothing differs")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print JSON")
    how.add_argument("--verify", action="store_true", help="read everything and check all checksums, instead of showing what is there")
    options = parser.parse_args()
    if options.diff and (options.json or options.verify):
        parser.error("--diff goes with neither --json nor --verify")
    try:
        code = show(options)
        sys.stdout.flush()
        return code
    except CheckpointError as error:
        message = str(error)
    except OSError as error:
        message = f"the output cannot be written: {error.strerror}"
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # where Python tries again at its end
    print(f"glade.inspect: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""make_stubs.py [--check]: writes the type stubs of the extension module, bindings/glade/_glade/, or says whether they are old.

The signatures are those that pybind11 (3 or newer) puts into docstrings. Tensor's operators and properties, which are
slots of a type without signatures, stand here.
"""

import inspect
import re
import sys
from pathlib import Path

import glade
from glade import _glade

FOLDER = Path(__file__).parents[1] / "bindings" / "glade" / "_glade"
MODULES = {
    "__init__": _glade, "_autograd": _glade._autograd, "_cuda": _glade._cuda, "_data": _glade._data, "_distributed": _glade._distributed, "_linear_attention": _glade._linear_attention, "_models": _glade._models, "_nn/__init__": _glade._nn,
    "_nn/init": _glade._nn.init, "_optim": _glade._optim, "_profiler": _glade._profiler, "_tuning": _glade._tuning,
}  # fmt: skip
# Public names of types, and where the stubs find them.
IMPORTS = {
    "glade": ("glade._glade", ["Checkpoint", "CheckpointFile", "CheckpointSaver", "Device", "DType", "Generator", "HDF5Entry", "HDF5File", "Tensor"]),
    "glade.cuda": ("glade._glade._cuda", ["Stream"]),
    "glade.data": ("glade._glade._data", ["Batch", "Loader", "TokenData"]),
    "glade.distributed": ("glade._glade._distributed", ["DataParallel", "ProcessGroup", "Saver"]),
    "glade.linear_attention": ("glade._glade._linear_attention", ["Plan"]),
    "glade.nn": ("glade._glade._nn", ["AttentionState", "Module"]),
    "glade.nn.models": ("glade._glade._models", ["AttentionStates", "CausalLM"]),
    "glade.optim": ("glade._glade._optim", ["LossScaler", "LRScheduler", "Optimizer", "ParameterGroup"]),
    "glade.profiler": ("glade._glade._profiler", ["Profile", "ProfileEvent"]),
    "glade.typing": ("glade.typing", ["ArrayLike", "DeviceLike", "DTypeLike", "Shape", "ValuesAndIndices"]),
}
# What pybind11 says of types without parameters.
BARE = {
    "object": "Any", "handle": "Any", "Iterable": "Iterable[Any]", "Callable": "Callable[..., Any]", "dict": "dict[str, Any]", "list": "list[Any]", "tuple": "tuple[Any, ...]",
    "os.PathLike": "os.PathLike[str]",
}  # fmt: skip
RETURNS = {("Module", name): "Self" for name in ("train", "eval", "to", "requires_grad_", "apply", "cuda", "cpu", "float", "double", "half", "bfloat16")}
RETURNS |= {("Generator", "manual_seed"): "Self", ("Module", "get_submodule"): "Any", ("Module", "get_parameter"): "Tensor"}
RETURNS |= {("Module", name): "list[tuple[str, Module]]" for name in ("named_children", "named_modules")}
RETURNS |= {("Module", name): "list[Module]" for name in ("children", "modules")}
RETURNS |= {("Plan", "asdict"): "dict[str, dict[str, Any]]"}
RETURNS |= {("CheckpointSaver", "__enter__"): "Self", ("Saver", "__enter__"): "Self", ("TokenWriter", "__enter__"): "Self", ("Loader", "__iter__"): "Self"}
IGNORED = {"_arguments", "_repr_html_", "__setstate__", "__reduce__", "__setattr__", "__delattr__", "__weakref__", "__dict__", "__doc__", "__module__", "__new__", "__hash__", "__buffer__"}

TENSOR = """
    dtype: DType
    device: Device
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    ndim: int
    itemsize: int
    nbytes: int
    is_cpu: bool
    is_cuda: bool
    is_leaf: bool
    requires_grad: bool
    @property
    def data(self) -> Tensor: ...
    @property
    def grad(self) -> Tensor | None: ...
    @grad.setter
    def grad(self, value: Tensor | None) -> None: ...
    @property
    def T(self) -> Tensor: ...
    @property
    def mT(self) -> Tensor: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Tensor]: ...
    def __getitem__(self, key: Any) -> Tensor: ...
    def __setitem__(self, key: Any, value: Any) -> None: ...
    def __bool__(self) -> bool: ...
    def __int__(self) -> int: ...
    def __float__(self) -> float: ...
    def __index__(self) -> int: ...
    def __neg__(self) -> Tensor: ...
    def __pos__(self) -> Tensor: ...
    def __abs__(self) -> Tensor: ...
    def __invert__(self) -> Tensor: ...
    def __eq__(self, other: Any) -> Tensor: ...  # type: ignore[override]
    def __ne__(self, other: Any) -> Tensor: ...  # type: ignore[override]
    def __hash__(self) -> int: ...
"""
OPERATORS = ["lt", "le", "gt", "ge", *(f"{p}{op}" for op in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor") for p in ("", "r"))]
TENSOR += "".join(f"    def __{op}__(self, other: Any) -> Tensor: ...\n" for op in OPERATORS)
TENSOR += "".join(f"    def __i{op}__(self, other: Any) -> Tensor: ...\n" for op in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"))


def split(parameters):
    """At the commas outside brackets."""
    parts, depth = [""], 0
    for c in parameters:
        depth += (c in "[({") - (c in "])}")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts if part.strip()]


def type_text(text):
    text = text.replace("typing.SupportsInt | typing.SupportsIndex", "int").replace("typing.SupportsFloat | typing.SupportsIndex", "float")
    text = re.sub(r"\b(typing|collections\.abc|glade(\.\w+)*)\.(?=[A-Za-z])", "", text)
    for bare, full in BARE.items():
        text = re.sub(rf"\b{bare}\b(?!\[)", full, text)
    return text


def parameter(text):
    match = re.fullmatch(r"(\*{0,2}\w+)(?:: (.*?))?(?: = (.*))?", text, re.DOTALL)
    if match is None or text == "*":
        return text
    name, kind, default = match.groups()
    if name in ("*args", "**kwargs"):
        return f"{name}: Any"
    if kind is None:
        return name
    kind = re.sub(r"\bDType\b", "DTypeLike", re.sub(r"\bDevice\b", "DeviceLike", type_text(kind))).replace("tuple[int, ...]", "Shape")
    if default == "None" and not kind.endswith("None") and kind != "Any":
        kind += " | None"
    return f"{name}: {kind}" + (" = ..." if default is not None else "")


def signatures(name, doc):
    return re.findall(rf"^(?:\d+\. )?{re.escape(name)}\((.*)\) -> (.+)$", doc or "", re.MULTILINE)


def function(name, doc, owner=None, static=False):
    found = signatures(name, doc)
    lines = []
    indent = "    " if owner else ""
    for parameters, result in found:
        parts = split(parameters)
        if owner and not static:
            parts = ["self", *parts[1:]]
        result = RETURNS.get((owner, name)) or type_text(result)
        arguments = ", ".join(parameter(part) for part in parts)
        lines += [indent + "@overload"] * (len(found) > 1) + [indent + "@staticmethod"] * static
        lines.append(f"{indent}def {name}({arguments}) -> {result}: ...")
    return lines


def aliases(members, indent=""):
    """Second names of functions: those under which the functions do not know themselves."""
    pairs = [(name, getattr(value, "__name__", name)) for name, value in sorted(members.items()) if not inspect.isclass(value)]
    return [f"{indent}{name} = {of}" for name, of in pairs if name != of and of in members]


def class_stub(name, cls):
    bases = [base.__name__ for base in cls.__bases__ if base.__module__.startswith("glade")]
    lines = [f"class {name}({', '.join(bases)}):" if bases else f"class {name}:"]
    if cls is glade.Tensor:
        lines += TENSOR.strip("\n").splitlines()
    for member, value in sorted(vars(cls).items()):
        if member in IGNORED:
            continue
        if isinstance(value, property):
            if cls is glade.Tensor:
                continue
            kind = type_text(re.search(r"-> (.+)$", value.fget.__doc__.splitlines()[0])[1])
            kind += " | None" if "None" in (value.__doc__ or "") and "None" not in kind and kind != "Any" else ""
            lines += ["    @property", f"    def {member}(self) -> {kind}: ..."]
            if value.fset is not None:
                lines += [f"    @{member}.setter", f"    def {member}(self, value: {kind}) -> None: ..."]
        else:
            is_static = isinstance(value, staticmethod)  # whose own __doc__ is that of its type
            lines += function(member, getattr(value.__func__ if is_static else value, "__doc__", None), name, is_static)
    lines += aliases(vars(cls), "    ")
    return lines if len(lines) > 1 else [lines[0] + " ..."]


def error_stub(name, cls):
    return [f"class {name}({', '.join(base.__name__ if base.__module__ != 'builtins' else 'builtins.' + base.__name__ for base in cls.__bases__)}): ..."]


def in_order(classes):
    """Bases before what derives from them."""
    return sorted(classes, key=lambda item: (len(item[1].__mro__), item[0]))


def module_stub(module):
    names = {name: value for name, value in vars(module).items() if not name.startswith("__") and not inspect.ismodule(value)}
    body = []
    for name, value in in_order([item for item in names.items() if inspect.isclass(item[1])]):
        if value is glade.DType or name != value.__name__:
            continue
        body += error_stub(name, value) if issubclass(value, Exception) else class_stub(name, value)
    body += [f"{name} = {value.__name__}" for name, value in names.items() if inspect.isclass(value) and name != value.__name__]
    body += [f"{name}: DType" for name, value in names.items() if isinstance(value, glade.DType)]
    for name, value in sorted(names.items()):
        if not inspect.isclass(value):
            body += function(name, getattr(value, "__doc__", None))
    body += aliases(names)
    text = "\n".join(body)
    if module is _glade:  # which has a `bool` and Tensor.float of its own
        text = re.sub(r"(?<=[:>|] )(int|float|bool)\b|(?<=\[)(int|float|bool)\b|(?<=, )(int|float|bool)(?=[,\]])", lambda m: "builtins." + m[0], text)
    header = ["# Written by scripts/make_stubs.py."]
    if module is _glade:
        header += ["import builtins", "from glade._dtype import DType as DType", "__version__: str"]
    if "os." in text:
        header.append("import os")
    imports = [("collections.abc", ["Callable", "Iterable", "Iterator", "Mapping", "Sequence"]), ("typing", ["Any", "overload"]), ("typing_extensions", ["Self"])]
    for source, wanted in [*imports, *IMPORTS.values()]:
        used = [name for name in wanted if re.search(rf"\b{name}\b", text) and name not in names]
        if used:
            header.append(f"from {source} import {', '.join(used)}")
    return "\n".join(header) + "\n\n" + text + "\n"


def main():
    old = []
    for path, module in MODULES.items():
        file = FOLDER / f"{path}.pyi"
        text = module_stub(module)
        if "--check" in sys.argv:
            old += [file] * (not file.exists() or file.read_text() != text)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    for file in old:
        print(f"{file} is old: run scripts/make_stubs.py")
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())

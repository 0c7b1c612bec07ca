"""The one line that a call with wrong arguments prints, from pybind11's list of signatures."""

from __future__ import annotations

import collections.abc
import difflib
import re
from dataclasses import dataclass
from typing import Any

from glade._glade import Device, DType, Tensor

# NumPy's and PyTorch's names of arguments, and glade's.
_OTHER_NAMES = {
    "axis": ["dim", "dims"], "axes": ["dims", "dim"], "dim": ["dims", "dim0"], "dims": ["dim"], "keepdims": ["keepdim"], "input": ["x", "a", "logits"],
    "self": ["x", "a"], "tensor": ["x", "data"], "other": ["b", "y", "other"], "x1": ["a"], "x2": ["b"], "target": ["targets", "b"], "tensors": ["tensors"],
    "size": ["shape"], "index": ["indices"], "src": ["source"], "min": ["low"], "max": ["high"], "a_min": ["min"], "a_max": ["max"], "low": ["min"], "high": ["max"], "std": ["deviation"],
    "ddof": ["correction"], "unbiased": ["correction"], "num_classes": ["classes"], "padding_index": ["padding_idx"],
    "normalized_shape": ["dim"], "embedding_dim": ["dim"], "parameters": ["params"], "learning_rate": ["lr"], "grad_outputs": ["gradients"], "value": ["values"],
}  # fmt: skip


@dataclass
class _Parameter:
    name: str
    kind: str  # of its type, as pybind11 writes it; "" for any
    required: bool
    by_name_only: bool


@dataclass
class _Signature:
    parameters: list[_Parameter]
    any_positional: bool
    any_named: bool


@dataclass
class _Problem:
    position: int  # of the argument in the call; a higher one means that more of the call fits
    text: str
    expected: str = ""


def _split(text: str, separator: str = ",") -> list[str]:
    """At the separators outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for c in text:
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        depth += 0 if quote else (c in "[({<") - (c in "])}")
        if c == separator and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts if part.strip()]


def _parse(signature: str) -> _Signature:
    text = re.sub(r" -> [^()]*$|\) -> .*$", lambda match: ")" if match[0].startswith(")") else "", signature)
    inside = text[text.index("(") + 1 : text.rindex(")")]
    result = _Signature([], False, False)
    by_name_only = False
    for part in _split(inside):
        if part.startswith("**"):
            result.any_named = True
        elif part.startswith("*"):
            result.any_positional |= len(part) > 1
            by_name_only = True
        elif part != "/":
            name, _, rest = part.partition(":")
            kind, has_default, _ = rest.partition(" = ")
            result.parameters.append(_Parameter(name.strip(), kind.strip(), not has_default, by_name_only))
    return result


# ---- types: whether a value fits, and in words ----------------------------------------------------------------------


def _alternatives(kind: str) -> list[str]:
    kind = kind.replace("typing.SupportsInt | typing.SupportsIndex", "int").replace("typing.SupportsFloat | typing.SupportsIndex", "float")
    if kind.startswith("Optional["):
        return [*_alternatives(kind[9:-1]), "None"]
    if kind.startswith("Union["):
        return _split(kind[6:-1])
    return _split(kind, "|")


def _is_number(value: Any) -> bool:
    return not isinstance(value, (str, bytes, Tensor)) and (hasattr(value, "__float__") or hasattr(value, "__index__")) and not hasattr(value, "__len__")


def _fits(kind: str, value: Any) -> bool:
    """Whether pybind11 would take the value; True for types that nothing here knows."""
    return any(_fits_one(one, value) for one in _alternatives(kind)) if kind else True


def _fits_one(kind: str, value: Any) -> bool:
    name, _, inner = kind.partition("[")
    name = name.rpartition(".")[2]
    if name in ("object", "Any", "handle"):
        return True
    if name == "Tensor":
        return isinstance(value, Tensor)
    if name == "ArrayLike":
        return isinstance(value, Tensor) or hasattr(value, "__dlpack__") or hasattr(value, "__array_interface__")
    if name == "int":
        return hasattr(value, "__index__") and not isinstance(value, Tensor)
    if name == "float":
        return _is_number(value)
    if name == "bool":
        return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")
    if name == "DType":
        return isinstance(value, (DType, str, type)) or hasattr(value, "itemsize")
    if name == "Device":
        return isinstance(value, (Device, str))
    if name == "PathLike":
        return isinstance(value, str) or hasattr(value, "__fspath__")
    if name == "tuple" and "..." in inner and hasattr(value, "__index__"):
        return not isinstance(value, Tensor)  # a shape of one size
    if name in ("Sequence", "list", "tuple", "List", "Tuple"):
        if not isinstance(value, (list, tuple)) and not (isinstance(value, collections.abc.Sequence) and not isinstance(value, str)):
            return False
        kinds = [part for part in _split(inner[:-1]) if part != "..."]
        repeated = name not in ("tuple", "Tuple") or "..." in inner
        if repeated:
            return all(_fits(kinds[0], item) for item in value) if kinds else True
        return len(kinds) == len(value) and all(map(_fits, kinds, value))
    if name in ("Mapping", "dict", "Dict"):
        return isinstance(value, collections.abc.Mapping)
    if name in ("Iterable",):
        return isinstance(value, collections.abc.Iterable)
    if name in ("Callable", "function"):
        return callable(value)
    if name == "None":
        return value is None
    if name == "str":
        return isinstance(value, str)
    if kind.startswith("glade."):
        return name in (base.__name__ for base in type(value).__mro__)
    return True


_WORDS = {
    "Tensor": "a tensor", "ArrayLike": "a tensor or an array", "int": "an integer", "float": "a number", "bool": "True or False", "str": "a string",
    "DType": "a dtype", "Device": "a device", "PathLike": "a path", "None": "None", "Callable": "a function", "function": "a function", "Iterable": "something to iterate over",
    "Mapping": "a dict", "dict": "a dict",
}  # fmt: skip
_PLURALS = {"Tensor": "tensors", "ArrayLike": "tensors or arrays", "int": "integers", "float": "numbers", "str": "strings", "bool": "bools"}


def _words(kind: str) -> str:
    texts: list[str] = []
    for one in _alternatives(kind):
        name, _, inner = one.partition("[")
        name = name.rpartition(".")[2]
        if name in ("Sequence", "list", "tuple", "List", "Tuple"):
            kinds = [part for part in _split(inner[:-1]) if part != "..."]
            of = {_PLURALS.get(_alternatives(kind)[0].rpartition(".")[2], "") for kind in kinds}
            text = f"a sequence of {of.pop()}" if len(of) == 1 and "" not in of else "a sequence"
        else:
            text = _WORDS.get(name, f"a {name}")
        if text not in texts:
            texts.append(text)
    return " or ".join(texts) if len(texts) < 3 else ", ".join(texts[:-1]) + " or " + texts[-1]


def _given(value: Any) -> str:
    """A value in a few words, whatever its size."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if value is None or isinstance(value, bool):
        return repr(value)
    name = type(value).__name__
    if isinstance(value, (int, float, str)):
        text = repr(value)
        return f"{text} ({name})" if len(text) <= 40 else f"{text[:36]}... ({name})"
    if isinstance(value, (list, tuple)):
        kinds = sorted({type(item).__name__ for item in value})
        return f"a {name} of {' and '.join(kinds)}" if 0 < len(kinds) <= 3 else f"a {name}"
    return f"{'an' if name[0] in 'aeiouAEIO' or name == 'ndarray' else 'a'} {name}"


# ---- what is wrong with a call ---------------------------------------------------------------------------------------


def _suggestion(name: str, known: list[str]) -> str:
    for other in _OTHER_NAMES.get(name, []):
        if other in known and other != name:
            return other
    close = difflib.get_close_matches(name, known, 1, 0.75)
    return close[0] if close else ""


def _problem(signature: _Signature, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> _Problem | None:
    parameters = signature.parameters
    positional = [p for p in parameters if not p.by_name_only]
    given = dict(zip((p.name for p in positional), arguments))
    for position, (parameter, value) in enumerate(zip(positional, arguments)):
        if not _fits(parameter.kind, value):
            return _Problem(position, f"{parameter.name} is {_given(value)}", _words(parameter.kind))
    if len(arguments) > len(positional) and not signature.any_positional:
        count = len(positional)
        at_most = f"at most {count} without names" if len(parameters) > count else f"at most {count}" if count else "none"
        return _Problem(len(positional), f"{len(arguments)} arguments", at_most)
    by_name = {p.name: p for p in parameters}
    for name, value in keywords.items():
        if name in given:
            return _Problem(len(arguments), f"{name} is given twice, by place and by name")
        if name not in by_name:
            if signature.any_named:
                continue
            meant = _suggestion(name, list(by_name))
            expected = ", ".join(by_name)
            return _Problem(len(arguments), f"no argument '{name}'" + (f", did you mean '{meant}'?" if meant else f", expected {expected}" if expected else ""))
        if not _fits(by_name[name].kind, value):
            return _Problem(len(arguments) + 1, f"{name} is {_given(value)}", _words(by_name[name].kind))
    for parameter in parameters:
        if parameter.required and parameter.name not in given and parameter.name not in keywords:
            return _Problem(len(arguments) + 2, f"argument '{parameter.name}' is missing", _words(parameter.kind) if parameter.kind else "")
    return None


def explain(message: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    """One line for pybind11's message about a call with these arguments."""
    head, _, rest = message.partition("\n")
    name = head.partition("(): incompatible")[0]
    signatures = re.findall(r"^    \d+\. (.*)$", rest.partition("\nInvoked with: ")[0], re.MULTILINE)
    if "constructor" in head:
        name, arguments = type(arguments[0]).__name__, arguments[1:]
    elif signatures and re.match(r"\(self\b", signatures[0]):
        if not isinstance(arguments[0], Tensor):
            name = f"{type(arguments[0]).__name__}.{name}"
        arguments = arguments[1:]
    parsed = []
    for text in signatures:
        signature = _parse(text)
        if signature.parameters and signature.parameters[0].name == "self":
            signature.parameters.pop(0)
        parsed.append(signature)
    problems = [problem for signature in parsed if (problem := _problem(signature, arguments, keywords)) is not None]
    if not problems:  # of a kind that only pybind11 sees
        kinds = ", ".join([_given(value) for value in arguments] + [f"{key}={_given(value)}" for key, value in keywords.items()])
        expected = " or ".join("(" + ", ".join(p.name for p in signature.parameters) + ")" for signature in parsed)
        return f"{name}: the arguments ({kinds}) do not fit {expected}"
    furthest = max(problem.position for problem in problems)
    best = [problem for problem in problems if problem.position == furthest]
    best.sort(key=lambda problem: "did you mean" not in problem.text)
    text = best[0].text
    expected = [problem.expected for problem in best if problem.expected and problem.text == text]
    return f"{name}: {text}" + (f", expected {' or '.join(dict.fromkeys(expected))}" if expected else "")

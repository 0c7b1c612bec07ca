"""A wrong call prints one line: the function, the argument, what was given and what is expected."""

import inspect

import numpy as np
import pytest

import glade
from glade import nn, optim

MATRIX = glade.zeros(31, 31)
LINEAR = nn.Linear(2, 3)

CALLS = [
    # other libraries' names
    (lambda: MATRIX.sum(axis=0), "sum: no argument 'axis', did you mean 'dim'?"),
    (lambda: MATRIX.max(axis=0), "max: no argument 'axis', did you mean 'dim'?"),
    (lambda: glade.min(MATRIX, axis=0), "min: no argument 'axis', did you mean 'dim'?"),
    (lambda: glade.mean(MATRIX, axis=0), "mean: no argument 'axis', did you mean 'dim'?"),
    (lambda: MATRIX.sum(0, keepdims=True), "sum: no argument 'keepdims', did you mean 'keepdim'?"),
    (lambda: glade.softmax(input=MATRIX, dim=1), "softmax: no argument 'input', did you mean 'x'?"),
    (lambda: glade.cumsum(MATRIX, axis=1), "cumsum: no argument 'axis', did you mean 'dim'?"),
    (lambda: optim.AdamW(parameters=[]), "AdamW: no argument 'parameters', did you mean 'params'?"),
    (lambda: optim.AdamW([], weight_deccay=0.1), "AdamW: no argument 'weight_deccay', did you mean 'weight_decay'?"),
    (lambda: nn.Linear(2, 3, False, 1), "Linear: 4 arguments, expected at most 3"),
    # wrong types
    (lambda: glade.exp(1.0), "exp: x is 1.0 (float), expected a tensor"),
    (lambda: glade.exp(np.ones(3)), "exp: x is an ndarray, expected a tensor"),
    (lambda: MATRIX.sum("x"), "sum: dim is 'x' (str), expected"),
    (lambda: MATRIX.cumsum(MATRIX), "cumsum: dim is a tensor of shape [31, 31], expected an integer"),
    (lambda: glade.cat([MATRIX, 3]), "cat: tensors is a list of Tensor and int, expected a sequence of tensors"),
    (lambda: nn.Linear("a", 3), "Linear: in_features is 'a' (str), expected an integer"),
    (lambda: nn.Linear(2.5, 3), "Linear: in_features is 2.5 (float), expected an integer"),
    (lambda: LINEAR([1.0, 2.0]), "Linear.forward: x is a list of float, expected a tensor"),
    (lambda: LINEAR.load_state_dict(3), "Linear.load_state_dict: state is 3 (int), expected a dict"),
    (lambda: MATRIX.to(5), "to: dtype is 5 (int), expected a dtype"),
    (lambda: glade.ones(2).add("b" * 100), f"add: b is '{'b' * 35}... (str), expected a tensor or a number"),
    # too few and too many
    (lambda: nn.Linear(2), "Linear: argument 'out_features' is missing, expected an integer"),
    (lambda: LINEAR(), "Linear.forward: argument 'x' is missing, expected a tensor"),
    (lambda: glade.exp(MATRIX, MATRIX), "exp: 2 arguments, expected at most 1"),
    (lambda: glade.exp(MATRIX, x=MATRIX), "exp: x is given twice, by place and by name"),
]


@pytest.mark.parametrize(("call", "words"), CALLS)
def test_one_line(call, words):
    with pytest.raises(TypeError) as raised:
        call()
    message = str(raised.value)
    assert message.startswith(words) and "\n" not in message and len(message) < 200
    assert raised.value.__cause__ is None and type(raised.value) is TypeError


def functions(owner, seen):
    for name, value in vars(owner).items():
        if id(value) in seen:
            continue
        seen.add(id(value))
        if inspect.ismodule(value) and value.__name__.startswith("glade"):
            yield from functions(value, seen)
        elif inspect.isclass(value) and value.__module__.startswith("glade"):
            yield from functions(value, seen)
        elif "builtin" in type(value).__name__ or type(value).__name__ == "instancemethod":
            yield f"{owner.__name__}.{name}", value


FUNCTIONS = list(functions(glade._glade, set()))


class Unfit:
    """Fits no argument."""

    def __repr__(self):
        return "long text " * 1000


def test_every_function_has_one_line():
    """Also those that nobody thought of: with nonsense for every argument no signature is dumped."""
    assert len(FUNCTIONS) > 300
    for name, function in FUNCTIONS:
        for arguments, keywords in [((Unfit(),) * 9, {}), ((), {"no_such_argument": Unfit()}), ((Unfit(),), {})]:
            try:
                function(*arguments, **keywords)
            except Exception as error:  # noqa: BLE001
                message = str(error)
                assert "incompatible" not in message and len(message) < 400 and "\n" not in message, f"{name}: {message}"


def test_methods_of_tensors_take_nothing_else_for_self():
    for name in ("numpy", "tolist", "item", "__array__", "__reduce__"):
        with pytest.raises(TypeError, match=name):
            getattr(glade.Tensor, name)(Unfit())


def test_errors_of_callbacks_are_left_alone():
    def fail(_):
        raise TypeError("of the caller")

    x = glade.ones(2, requires_grad=True)
    x.register_hook(fail)
    with pytest.raises(TypeError, match="^of the caller$"):
        x.sum().backward()


def test_python_is_told_names_of_python():
    x = glade.ones(2, requires_grad=True)
    with pytest.raises(glade.AutogradError, match=r"use glade\.no_grad\(\)") as raised:
        x += 1
    assert "Guard" not in str(raised.value)
    with pytest.raises(glade.DTypeError, match=r"^Module\.to: dtype is int64"):
        LINEAR.to("int64")

"""Each error is glade's own class and the closest built-in one, with the C++ message."""

import builtins
import pickle

import pytest

import glade

BUILTINS = {
    "ShapeError": ValueError, "DTypeError": TypeError, "DeviceError": RuntimeError, "IndexError": IndexError, "ValueError": ValueError,
    "AutogradError": RuntimeError, "OutOfMemoryError": MemoryError, "CudaError": RuntimeError, "CheckpointError": OSError,
}  # fmt: skip


@pytest.mark.parametrize("name", BUILTINS)
def test_classes(name):
    error = getattr(glade, name)
    assert issubclass(error, glade.Error) and issubclass(error, BUILTINS[name]) and error.__doc__
    assert issubclass(glade.Error, Exception)
    again = pickle.loads(pickle.dumps(error("text")))
    assert type(again) is error and str(again) == "text"


@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        ("ShapeError", "matmul.*3.*4", lambda: glade.ones(2, 3) @ glade.ones(4, 5)),
        ("ShapeError", "add", lambda: glade.ones(2) + glade.ones(3)),
        ("ShapeError", "reshape", lambda: glade.ones(4).reshape(3)),
        ("DTypeError", "bool", lambda: -glade.tensor([True])),
        ("DTypeError", "complex", lambda: glade.tensor([1j])),
        ("DTypeError", "object|str|<U", lambda: glade.tensor(["text"])),
        ("ValueError", "float31", lambda: glade.zeros(1, dtype="float31")),
        ("ValueError", "tpu", lambda: glade.zeros(1, device="tpu")),
        ("DeviceError", "cuda:99", lambda: glade.zeros(1, device="cuda:99")),
        ("IndexError", "sum", lambda: glade.ones(2).sum(5)),
        ("AutogradError", "backward", lambda: glade.ones(1).backward()),
        ("OutOfMemoryError", "bytes", lambda: glade.empty(1 << 60)),
        ("ValueError", "layer_idx", lambda: glade.lightning_g_gamma(4, 3, 3)),
    ],
)
def test_messages(error, words, call):
    with pytest.raises(getattr(glade, error), match=words) as raised:
        call()
    assert isinstance(raised.value, BUILTINS[error])


def test_wrong_types_are_type_errors():
    for call in [lambda: glade.exp(1.0), lambda: glade.zeros("a"), lambda: glade.ones(2).reshape(1.5), lambda: glade.ones(2).sum("x")]:
        with pytest.raises(builtins.TypeError):
            call()
    with pytest.raises(builtins.TypeError, match="reshape"):
        glade.ones(2).reshape("ab")

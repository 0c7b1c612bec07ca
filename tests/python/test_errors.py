"""Each error is glade's own class and the closest built-in one, with the C++ message."""

import builtins
import pickle

import pytest

import glade
from glade import nn, optim

ROWS = glade.ones(1, 2, 1, 4)
INTEGERS = glade.ones(1, 2, 1, dtype="int64")
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
        ("DTypeError", "weight is int64, expected float32 for x", lambda: glade.rms_norm(glade.ones(1), INTEGERS[0, 0])),
        ("DTypeError", "g is int64: expected float32 with query float32", lambda: glade.recurrent(ROWS, ROWS, ROWS, g=INTEGERS)),
        ("ShapeError", r"GatedLinear.* x is \[1, 4\], .* 4\]", lambda: nn.GatedLinearAttention(4, num_heads=2)(ROWS[0, 0])),
        ("ShapeError", r"Lightning.* x is \[2, 1, 4\], .* 8\]", lambda: nn.LightningAttention(8, 0, 1, num_heads=2)(ROWS[0])),
        ("ValueError", "norm_eps is nan, expected a finite number", lambda: nn.models.GLAForCausalLM(norm_eps=float("nan"))),
        ("ValueError", "RMSNorm: eps is -1", lambda: nn.models.GLAForCausalLM(norm_eps=-1)),
        ("ValueError", "RMSNorm: eps is -1", lambda: nn.RMSNorm(4, eps=-1)),
        ("ValueError", "LayerNorm: eps is inf", lambda: nn.LayerNorm(4, eps=float("inf"))),
        ("ValueError", "gate_logit_normalizer is 0", lambda: nn.GatedLinearAttention(32, num_heads=2, gate_logit_normalizer=0)),
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
    optimizer = optim.AdamW([glade.ones(2, requires_grad=True)])
    model = nn.models.GLAForCausalLM(hidden_size=32, num_hidden_layers=1, num_heads=2)
    for call, words in [
        (lambda: optim.AdamW([3]), "parameter 0 is a int, expected a tensor or a pair"),
        (lambda: optim.LRScheduler(optimizer, lambda step: "x"), "a value is of type str, expected float"),
        (lambda: model.generate([[1]], 3, conversations=[3]), "a value is of type int, expected Conversation"),
        (lambda: glade.cuda.GraphedFunction("cpu", lambda x: 3)([ROWS]), "a value is of type int, expected Tensor"),
    ]:
        with pytest.raises(builtins.TypeError, match=words):
            call()


def test_learning_rates_below_zero():
    optimizer = optim.AdamW([glade.ones(2, requires_grad=True)], lr=0.5)
    for lr in [-1.0, float("nan")]:
        with pytest.raises(glade.ValueError, match="AdamW: lr is"):
            optimizer.lr = lr
        assert optimizer.lr == 0.5
    factors = [1.0, -1.0, 0.5]
    scheduler = optim.LRScheduler(optimizer, lambda step: factors[step])
    with pytest.raises(glade.ValueError, match="LRScheduler: the factor of step 1 is -1, expected"):
        scheduler.step()
    assert scheduler.state_dict()["step"].item() == 0 and optimizer.lr == 0.5
    scheduler.load_state_dict({"step": glade.tensor(2)})
    assert scheduler.factor == 0.5 and optimizer.lr == 0.25
    optimizer.param_groups[0].lr = -1
    with pytest.raises(glade.ValueError, match="lr is -1"):
        optimizer.step()

"""Losses, glade.nn.functional and layers without parameters: against NumPy, against PyTorch where it is installed, gradients, errors."""

import copy
import pickle

import numpy as np
import pytest
from conftest import to_numpy

import glade
import glade.nn.functional as F
from glade import nn

try:
    import torch
    import torch.nn.functional as torch_functional
except ImportError:
    torch = None


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def reduced(losses, reduction, count=None):
    return {"none": losses, "sum": losses.sum(), "mean": losses.sum() / (losses.size if count is None else count)}[reduction]


# ---- losses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(rng, device, reduction, smoothing):
    x, targets = rng.normal(size=(3, 4, 6)), rng.integers(0, 6, size=(3, 4))
    targets[0, 1] = -100
    log_p = log_softmax(x)
    chosen = -np.take_along_axis(log_p, np.maximum(targets, 0)[..., None], -1)[..., 0]
    losses = np.where(targets == -100, 0, (1 - smoothing) * chosen - smoothing * log_p.mean(-1))
    expected = reduced(losses, reduction, 11)
    logits, labels = glade.tensor(x, device=device, requires_grad=True), glade.tensor(targets, device=device)
    found = glade.cross_entropy(logits, labels, reduction=reduction, label_smoothing=smoothing)
    np.testing.assert_allclose(to_numpy(found), expected, rtol=1e-10, atol=1e-12)
    moved = logits.detach().permute(0, 2, 1).contiguous().requires_grad_()  # PyTorch's layout: classes in dimension 1
    for loss in (
        F.cross_entropy(moved, labels, reduction=reduction, label_smoothing=smoothing),
        nn.CrossEntropyLoss(reduction=reduction, label_smoothing=smoothing)(moved, labels),
    ):
        np.testing.assert_allclose(to_numpy(loss), expected, rtol=1e-10, atol=1e-12)
    if smoothing == 0:
        found = glade.nll_loss(logits.log_softmax(-1), labels, reduction=reduction)
        np.testing.assert_allclose(to_numpy(found), expected, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(to_numpy(F.nll_loss(moved.log_softmax(1), labels, reduction=reduction)), expected, rtol=1e-10, atol=1e-12)

    def loss_of(z):
        return glade.cross_entropy(z, labels, reduction=reduction, label_smoothing=smoothing)

    assert glade.autograd.gradcheck(loss_of, logits)
    assert glade.autograd.gradgradcheck(loss_of, logits)
    assert glade.autograd.gradcheck(lambda z: glade.nll_loss(z, labels, reduction=reduction), logits)


def test_losses_of_16_bits_without_reduction(rng, device):
    x = glade.tensor(rng.normal(size=(5, 40)), dtype="bfloat16", device=device, requires_grad=True)
    targets = glade.tensor(rng.integers(0, 40, size=5), device=device)
    losses = glade.cross_entropy(x, targets, reduction="none")
    assert losses.dtype is glade.float32
    np.testing.assert_allclose(to_numpy(losses), to_numpy(glade.cross_entropy(x.detach().float(), targets, reduction="none")), rtol=1e-2, atol=1e-2)
    weights = glade.tensor(rng.normal(size=5), dtype="float32", device=device)
    (losses * weights).sum().backward()
    wide = x.detach().float().requires_grad_()
    (glade.cross_entropy(wide, targets, reduction="none") * weights).sum().backward()
    assert x.grad.dtype is glade.bfloat16
    np.testing.assert_allclose(to_numpy(x.grad), to_numpy(wide.grad), rtol=2e-2, atol=2e-3)


def binary_in_numpy(p, y):
    with np.errstate(divide="ignore"):
        return -(y * np.maximum(np.log(p), -100) + (1 - y) * np.maximum(np.log1p(-p), -100))


def with_logits_in_numpy(x, y, weight=1.0):
    return (1 - y) * x + (1 + (weight - 1) * y) * np.logaddexp(0, -x)


WEIGHT = np.array([1.0, 2.0, 0.5, 3.0])
ELEMENTWISE = {
    "mse_loss": (lambda a, b, r: F.mse_loss(a, b, reduction=r), lambda a, b: (a - b) ** 2, nn.MSELoss),
    "l1_loss": (lambda a, b, r: F.l1_loss(a, b, reduction=r), lambda a, b: abs(a - b), nn.L1Loss),
    "binary_cross_entropy": (lambda a, b, r: F.binary_cross_entropy(a, b, reduction=r), binary_in_numpy, nn.BCELoss),
    "binary_cross_entropy_with_logits": (lambda a, b, r: F.binary_cross_entropy_with_logits(a, b, reduction=r), with_logits_in_numpy, nn.BCEWithLogitsLoss),
    "pos_weight": (
        lambda a, b, r: F.binary_cross_entropy_with_logits(a, b, reduction=r, pos_weight=glade.tensor(WEIGHT, device=a.device)),
        lambda a, b: with_logits_in_numpy(a, b, WEIGHT), None,
    ),
    "kl_div": (lambda a, b, r: F.kl_div(a, b, reduction=r), lambda a, b: b * (np.log(b) - a), nn.KLDivLoss),
    "kl_div of logarithms": (lambda a, b, r: F.kl_div(a, b, reduction=r, log_target=True), lambda a, b: np.exp(b) * (b - a), None),
}  # fmt: skip


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_elementwise_losses(rng, device, name, reduction):
    loss, expected, layer = ELEMENTWISE[name]
    a = rng.uniform(0.05, 0.95, size=(3, 4)) if name == "binary_cross_entropy" else rng.normal(size=(3, 4)) * 3
    b = rng.uniform(0.05, 0.95, size=(3, 4))
    x, y = (glade.tensor(v, device=device, requires_grad=True) for v in (a, b))
    np.testing.assert_allclose(to_numpy(loss(x, y, reduction)), reduced(expected(a, b), reduction), rtol=1e-10)
    assert glade.autograd.gradcheck(lambda p, q: loss(p, q, reduction), [x, y])
    assert glade.autograd.gradgradcheck(lambda p, q: loss(p, q, reduction), [x, y])
    if layer is not None:
        module = layer(reduction=reduction)
        assert module(x, y).tolist() == loss(x, y, reduction).tolist() and f"reduction='{reduction}'" in repr(module)
    narrow = loss(x.detach().bfloat16(), y.detach().bfloat16(), reduction)
    assert narrow.dtype is glade.float32
    with pytest.raises(glade.ShapeError, match="expected equal shapes"):
        loss(x, y[:2], reduction)


def test_losses_at_their_ends(device):
    p = glade.tensor([0.0, 1.0, 0.0, 1.0], device=device, requires_grad=True)
    y = glade.tensor([0.0, 1.0, 1.0, 0.0], device=device)
    losses = F.binary_cross_entropy(p, y, reduction="none")
    assert losses.tolist() == [0, 0, 100, 100]
    losses.sum().backward()
    assert np.isfinite(to_numpy(p.grad)).all()
    x = glade.tensor([200.0, -200.0, 200.0, -200.0], device=device, requires_grad=True)
    losses = F.binary_cross_entropy_with_logits(x, y, reduction="none")
    assert losses.tolist() == [200, 200, 0, 0]
    target = glade.tensor([0.0, 1.0], device=device, requires_grad=True)
    divergence = F.kl_div(glade.tensor([-1.0, -2.0], device=device), target, reduction="none")
    assert divergence.tolist() == [0, 2]
    divergence.sum().backward()
    assert np.isfinite(to_numpy(target.grad)).all()
    with pytest.raises(glade.ValueError, match="binary_cross_entropy: probabilities reach from -1 to 2, expected values in"):
        F.binary_cross_entropy(glade.tensor([-1.0, 2.0]), glade.zeros(2))
    batch = F.kl_div(glade.zeros(2, 3), glade.ones(2, 3), reduction="batchmean")
    assert batch.item() == 0 and F.kl_div(glade.zeros(2, 3) - 1, glade.ones(2, 3), reduction="batchmean").item() == 3


def test_unknown_reductions():
    for call in (lambda: glade.mse_loss(glade.ones(1), glade.ones(1), reduction="avg"), lambda: nn.CrossEntropyLoss(reduction="avg")):
        with pytest.raises(glade.ValueError, match="reduction is 'avg', expected 'mean', 'sum' or 'none'"):
            call()


# ---- the other functions ---------------------------------------------------------------------------------------------


def test_orders_of_arguments(rng):
    x = glade.tensor(rng.normal(size=(2, 4)))
    weight, bias = glade.tensor(rng.normal(size=(3, 4))), glade.tensor(rng.normal(size=3))
    np.testing.assert_allclose(to_numpy(F.linear(x, weight, bias)), to_numpy(x) @ to_numpy(weight).T + to_numpy(bias))
    ids = glade.tensor([[0, 2]])
    assert F.embedding(ids, weight).tolist() == [to_numpy(weight)[[0, 2]].tolist()]
    rows = nn.Parameter(weight)
    F.embedding(ids, rows, padding_idx=-1).sum().backward()
    with pytest.raises(IndexError, match="padding_idx is -9"):
        F.embedding(ids, rows, padding_idx=-9)
    assert rows.grad.sum(1).tolist() == [4, 0, 0]
    assert F.one_hot(ids).tolist() == [[[1, 0, 0], [0, 0, 1]]] and F.one_hot(ids, 4).shape == (1, 2, 4)
    values = to_numpy(x)
    np.testing.assert_allclose(
        to_numpy(F.layer_norm(x, (4,), eps=1e-3)), (values - values.mean(-1, keepdims=True)) / np.sqrt(values.var(-1, keepdims=True) + 1e-3)
    )
    np.testing.assert_allclose(to_numpy(F.rms_norm(x, 4)), values / np.sqrt((values**2).mean(-1, keepdims=True)))
    with pytest.raises(glade.ShapeError, match=r"layer_norm: normalized_shape is \[2, 4\], expected \[4\]"):
        F.layer_norm(x, (2, 4))
    for name in ("relu", "gelu", "silu", "sigmoid", "logsigmoid", "tanh", "softplus", "softmax", "log_softmax"):
        assert getattr(F, name)(x).tolist() == getattr(x, name)().tolist()
    assert F.gelu(x, approximate="tanh").tolist() == x.gelu("tanh").tolist() and F.softmax(x, dim=0).sum(0).tolist() == pytest.approx([1] * 4)
    assert F.dropout(x, 0.5, training=False).tolist() == x.tolist()


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_normalize(rng, p):
    x = glade.tensor(rng.normal(size=(2, 3, 4)), requires_grad=True)
    values = to_numpy(x)
    np.testing.assert_allclose(to_numpy(F.normalize(x, p)), values / (abs(values) ** p).sum(1, keepdims=True) ** (1 / p))
    np.testing.assert_allclose(to_numpy(F.normalize(x, p, dim=-1)), values / (abs(values) ** p).sum(-1, keepdims=True) ** (1 / p))
    assert F.normalize(glade.zeros(2, 2)).tolist() == [[0, 0], [0, 0]]
    assert glade.autograd.gradcheck(lambda z: F.normalize(z, p, dim=-1), x)


def test_pad(rng, device):
    x = glade.tensor(rng.normal(size=(2, 3, 4)), device=device, requires_grad=True)
    values = to_numpy(x)
    for pad, wanted in [((1, 2), ((0, 0), (0, 0), (1, 2))), ((0, 1, 2, 0), ((0, 0), (2, 0), (0, 1))), ((0, 0, 0, 0, 1, 1), ((1, 1), (0, 0), (0, 0)))]:
        np.testing.assert_array_equal(to_numpy(F.pad(x, pad, value=7.0)), np.pad(values, wanted, constant_values=7.0))
        assert glade.autograd.gradcheck(lambda z, pad=pad: F.pad(z, pad), x)
    assert F.pad(x, (-1, -1)).tolist() == values[:, :, 1:-1].tolist() and F.pad(x, (-1, 1)).shape == (2, 3, 4)
    for wrong in ((1,), (1,) * 8, (-3, -3)):
        with pytest.raises(glade.ValueError, match="pad: "):
            F.pad(x, wrong)
    with pytest.raises(glade.ValueError, match="mode is 'reflect'"):
        F.pad(x, (1, 1), mode="reflect")


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_against_pytorch(rng, reduction):
    a, b = rng.uniform(0.05, 0.95, size=(3, 4)), rng.uniform(0.05, 0.95, size=(3, 4))
    x, y = glade.tensor(a), glade.tensor(b)
    t, u = torch.tensor(a), torch.tensor(b)
    for name in ("mse_loss", "l1_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div"):
        expected = getattr(torch_functional, name)(t, u, reduction=reduction)
        np.testing.assert_allclose(to_numpy(getattr(F, name)(x, y, reduction=reduction)), expected.numpy(), rtol=1e-10, err_msg=name)
    logits, targets = rng.normal(size=(3, 5, 4)), rng.integers(0, 5, size=(3, 4))
    expected = torch_functional.cross_entropy(torch.tensor(logits), torch.tensor(targets), reduction=reduction, label_smoothing=0.1)
    found = F.cross_entropy(glade.tensor(logits), glade.tensor(targets), reduction=reduction, label_smoothing=0.1)
    np.testing.assert_allclose(to_numpy(found), expected.numpy(), rtol=1e-10)
    np.testing.assert_allclose(to_numpy(F.normalize(x, dim=0)), torch_functional.normalize(t, dim=0).numpy())
    if hasattr(torch_functional, "rms_norm"):  # from PyTorch 2.4 on
        np.testing.assert_allclose(to_numpy(F.rms_norm(x, (4,))), torch_functional.rms_norm(t, (4,)).numpy())


# ---- layers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "function"),
    [
        (nn.ReLU(), glade.relu), (nn.GELU(), glade.gelu), (nn.GELU(approximate="tanh"), lambda x: x.gelu("tanh")), (nn.SiLU(), glade.silu),
        (nn.Tanh(), glade.tanh), (nn.Sigmoid(), glade.sigmoid), (nn.Softplus(), glade.softplus), (nn.Softmax(dim=0), lambda x: x.softmax(0)),
        (nn.Identity(), lambda x: x), (nn.Flatten(), lambda x: x.flatten(1)), (nn.Flatten(start_dim=0, end_dim=1), lambda x: x.flatten(0, 1)),
    ],
)  # fmt: skip
def test_layers_without_parameters(rng, layer, function):
    x = glade.tensor(rng.normal(size=(2, 3, 4)))
    assert layer(x).tolist() == function(x).tolist() and layer.parameters() == []
    again = pickle.loads(pickle.dumps(layer))
    assert repr(again) == repr(layer) and again(x).tolist() == layer(x).tolist()
    assert repr(nn.Sequential(layer, layer)).count(repr(layer)) == 1


def test_losses_are_copied():
    loss = nn.BCEWithLogitsLoss(pos_weight=glade.tensor([2.0]))
    again = copy.deepcopy(loss)
    assert again.pos_weight.tolist() == [2] and not again.pos_weight.is_same(loss.pos_weight)
    assert loss.double().pos_weight.dtype is glade.float64 and [name for name, _ in loss.named_buffers()] == ["pos_weight"]
    assert nn.CrossEntropyLoss(ignore_index=3).ignore_index == 3


def test_module_dict():
    heads = nn.ModuleDict({"left": nn.Linear(2, 1), "right": nn.Linear(2, 1)})
    assert list(heads) == ["left", "right"] and len(heads) == 2 and "left" in heads and heads["left"] is heads.left
    assert [name for name, _ in heads.named_parameters()] == ["left.weight", "left.bias", "right.weight", "right.bias"]
    heads["right"] = nn.Identity()
    del heads["left"]
    assert [name for name, _ in heads.items()] == ["right"] and list(heads.values()) == [heads["right"]] and heads.parameters() == []
    assert list(copy.deepcopy(heads).keys()) == ["right"]
    with pytest.raises(TypeError, match="expected a module, got int"):
        heads["x"] = 3
    with pytest.raises(ValueError, match="'keys' is the name of a method"):
        heads["keys"] = nn.Identity()


def test_parameter_list():
    class Scales(nn.Module):
        def __init__(self):
            super().__init__()
            self.scales = nn.ParameterList([glade.ones(2), nn.Parameter(glade.zeros(3))])

    model = Scales()
    assert [name for name, _ in model.named_parameters()] == ["scales.0", "scales.1"]
    model.scales.append(glade.ones(1))
    assert [x.shape for x in model.scales] == [(2,), (3,), (1,)] and model.scales[-1].requires_grad and len(model.scales) == 3
    model.scales[0] = nn.Parameter(glade.ones(5))
    assert model.scales[0].shape == (5,) and len(copy.deepcopy(model.scales).parameters()) == 3
    with pytest.raises(IndexError, match="index 3 is out of range for 3"):
        model.scales[3]
    with pytest.raises(TypeError, match="expected a tensor, got int"):
        model.scales.append(3)

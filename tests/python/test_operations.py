"""The operations as functions and methods, against NumPy; their derivatives are tested in C++, here only that they come through."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import to_numpy

import glade


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


UNARY = {
    "negative": np.negative, "abs": np.abs, "square": np.square, "exp": np.exp, "sqrt": np.sqrt, "log": np.log, "sin": np.sin, "cos": np.cos,
    "tanh": np.tanh, "sigmoid": sigmoid, "rsqrt": lambda a: a**-0.5, "reciprocal": lambda a: 1 / a, "relu": lambda a: np.maximum(a, 0),
    "logsigmoid": lambda a: np.log(sigmoid(a)), "softplus": lambda a: np.log1p(np.exp(a)), "silu": lambda a: a * sigmoid(a),
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_unary(name, rng, device):
    a = rng.uniform(0.1, 3, (3, 5))
    x = glade.tensor(a, device=device)
    for got in [getattr(glade, name)(x), getattr(x, name)()]:
        np.testing.assert_allclose(to_numpy(got), UNARY[name](a), rtol=1e-12)


BINARY = ["add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "not_equal", "less", "less_equal", "greater", "greater_equal"]


@pytest.mark.parametrize("name", BINARY)
def test_binary(name, rng, device):
    a, b = rng.uniform(0.1, 3, (3, 5)), rng.uniform(0.1, 3, (3, 1))
    x, y = glade.tensor(a, device=device), glade.tensor(b, device=device)
    expected = getattr(np, name)(a, b)
    for got in [getattr(glade, name)(x, y), getattr(x, name)(y)]:
        np.testing.assert_allclose(to_numpy(got), expected, rtol=1e-13)
    np.testing.assert_allclose(to_numpy(getattr(x, name)(2)), getattr(np, name)(a, 2), rtol=1e-13)


def test_number_first():
    assert glade.subtract(3, glade.tensor([1.0])).tolist() == [2.0]
    assert glade.divide(3, glade.tensor([2.0])).tolist() == [1.5]


def test_clamp_at_its_bounds(device):
    nan = float("nan")
    x = glade.tensor([1.0, 2.0, 3.0, 4.0, nan], device=device, requires_grad=True)
    low, high = (glade.tensor([v] * 5, device=device, requires_grad=True) for v in (1.0, 3.0))
    for bounds in ((1, 3), (low, high)):
        x.grad = None
        y = x.clamp(*bounds)
        y.sum().backward()
        np.testing.assert_array_equal(to_numpy(y), [1, 2, 3, 3, nan])
        assert x.grad.tolist() == [1, 1, 1, 0, 0]
    assert low.grad.tolist() == [0] * 5 and high.grad.tolist() == [0, 0, 0, 1, 0]
    for options in ({"min": nan}, {"max": nan}, {"min": nan, "max": 1}, {"min": low * nan}):
        assert x.clamp(**options).isnan().all(), options
    assert x.detach().clone().clamp_(max=nan).isnan().all() and glade.tensor([1, 2]).clamp(min=nan).isnan().all()
    assert x.clamp(min=high, max=low)[:4].tolist() == [1, 1, 1, 1]  # max counts


def test_cat_skips_what_is_empty_in_one_dimension(device):
    nothing = glade.tensor([], device=device, requires_grad=True)
    x = glade.tensor([[1.0, 2.0]], device=device, requires_grad=True)
    for dim in (0, 1, -1):
        assert glade.equal(glade.cat([nothing, x, nothing], dim), x)
    (glade.cat([nothing, x, x]) * 2).sum().backward()
    assert nothing.grad.shape == (0,) and x.grad.tolist() == [[4, 4]]
    assert glade.cat([nothing, glade.tensor([[1, 2]], device=device)]).dtype == glade.float32
    assert glade.cat([nothing, nothing]).shape == (0,)
    with pytest.raises(ValueError, match=r"tensors\[1\] is \[1, 2\] and tensors\[2\] is \[2, 0\]"):
        glade.cat([nothing, x, x.new_zeros(2, 0)], 0)


def test_where_and_clamp(rng):
    a, b = rng.normal(size=(4, 3)), rng.normal(size=(3,))
    x, y = glade.tensor(a), glade.tensor(b)
    np.testing.assert_array_equal(to_numpy(glade.where(x > 0, x, y)), np.where(a > 0, a, b))
    np.testing.assert_array_equal(to_numpy(glade.where(x > 0, x, 0)), np.where(a > 0, a, 0))
    np.testing.assert_array_equal(to_numpy(glade.where(x > 0, 1.5, x)), np.where(a > 0, 1.5, a))
    np.testing.assert_array_equal(to_numpy(x.where(x > 0, y)), np.where(a > 0, a, b))
    np.testing.assert_array_equal(to_numpy(x.where(x > 0, 2)), np.where(a > 0, a, 2))
    np.testing.assert_array_equal(to_numpy(x.clamp(-0.5, 0.5)), a.clip(-0.5, 0.5))


def test_gelu():
    x = glade.tensor([-1.0, 0.5, 2.0], dtype="float64")
    np.testing.assert_allclose(to_numpy(glade.gelu(x)), [-0.15865525393145707, 0.34573123063700656, 1.9544997361036416], rtol=1e-12)
    np.testing.assert_allclose(to_numpy(x.gelu("tanh")), to_numpy(x.gelu()), atol=1e-3)
    with pytest.raises(glade.ValueError, match="approximate"):
        glade.gelu(x, approximate="erf")


@pytest.mark.parametrize("name", ["sum", "mean", "var", "amax", "amin"])
@pytest.mark.parametrize("dim", [None, 0, -1, (0, 2)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_reductions(name, dim, keepdim, rng, device):
    a = rng.normal(size=(3, 4, 5))
    x = glade.tensor(a, device=device)
    expected = getattr(np, name)(a, axis=dim, keepdims=keepdim, **({"ddof": 1} if name == "var" else {}))
    for got in [getattr(glade, name)(x, dim, keepdim=keepdim), getattr(x, name)(dim=dim, keepdim=keepdim)]:
        np.testing.assert_allclose(to_numpy(got), expected, rtol=1e-12)


def test_other_reductions(rng):
    a = rng.normal(size=(3, 4))
    x = glade.tensor(a)
    np.testing.assert_array_equal(to_numpy(x.argmax(0)), a.argmax(0))
    np.testing.assert_allclose(to_numpy(x.logsumexp(1)), np.log(np.exp(a).sum(1)), rtol=1e-13)
    softmax = np.exp(a) / np.exp(a).sum(1, keepdims=True)
    np.testing.assert_allclose(to_numpy(x.softmax()), softmax, rtol=1e-13)
    np.testing.assert_allclose(to_numpy(glade.log_softmax(x, 1)), np.log(softmax), rtol=1e-13)
    np.testing.assert_allclose(to_numpy(x.cumsum(0)), a.cumsum(0), rtol=1e-13)
    np.testing.assert_allclose(to_numpy(x.var(correction=0)), a.var(), rtol=1e-13)
    np.testing.assert_allclose(to_numpy(x.sum_to((1, 4))), a.sum(0, keepdims=True), rtol=1e-13)


def test_shapes(rng):
    a = rng.normal(size=(2, 3, 4))
    x = glade.tensor(a)
    cases = [
        (x.reshape(6, -1), a.reshape(6, -1)), (glade.reshape(x, (4, 6)), a.reshape(4, 6)), (x.permute(2, 0, 1), a.transpose(2, 0, 1)),
        (x.transpose(0, 2), a.swapaxes(0, 2)), (x.flatten(1), a.reshape(2, 12)), (x.unsqueeze(1), a[:, None]), (x[:1].squeeze(0), a[0]),
        (x[:, :1].expand(-1, 3, -1), np.broadcast_to(a[:, :1], a.shape)), (x[0].broadcast_to((5, 3, 4)), np.broadcast_to(a[0], (5, 3, 4))),
        (x.flip(0, 2), a[::-1, :, ::-1]), (x.slice(1, None, None, 2), a[:, ::2]), (x.select(2, -1), a[:, :, -1]),
        (x.repeat_interleave(2, 1), a.repeat(2, 1)), (glade.cat([x, x], 1), np.concatenate([a, a], 1)), (glade.stack((x, x)), np.stack([a, a])),
        (x.T.contiguous(), a.T), (x.clone(), a),
    ]  # fmt: skip
    for i, (got, expected) in enumerate(cases):
        assert got.shape == expected.shape, i
        np.testing.assert_array_equal(to_numpy(got), expected, err_msg=str(i))
    assert [part.shape for part in x.split(3, 2)] == [(2, 3, 3), (2, 3, 1)]
    assert [part.shape for part in glade.split(x, [1, 3], 2)] == [(2, 3, 1), (2, 3, 3)]


def test_matmul_and_linear(rng, device):
    a, w, b = rng.normal(size=(2, 3, 4)), rng.normal(size=(5, 4)), rng.normal(size=5)
    x, weight, bias = (glade.tensor(v, device=device) for v in (a, w, b))
    np.testing.assert_allclose(to_numpy(glade.matmul(x, weight.T)), a @ w.T, rtol=1e-12)
    np.testing.assert_allclose(to_numpy(glade.linear(x, weight)), a @ w.T, rtol=1e-12)
    np.testing.assert_allclose(to_numpy(glade.linear(x, weight, bias)), a @ w.T + b, rtol=1e-12)


def test_indexing_operations(rng, device):
    a = rng.normal(size=(5, 3))
    x = glade.tensor(a, device=device)
    i = glade.tensor([[1, 4], [0, 1]], device=device)
    np.testing.assert_array_equal(to_numpy(glade.embedding(i, x)), a[to_numpy(i)])
    np.testing.assert_array_equal(to_numpy(x.index_select(0, i[0])), a[[1, 4]])
    j = glade.tensor([[0, 2, 1]], device=device)
    np.testing.assert_array_equal(to_numpy(x.gather(0, j)), np.take_along_axis(a, to_numpy(j), 0))
    expected = a.copy()
    np.add.at(expected, ([0, 2, 1], [0, 1, 2]), 1.0)
    np.testing.assert_array_equal(to_numpy(x.scatter_add(0, j, glade.ones(1, 3, dtype="float64", device=device))), expected)
    assert glade.one_hot(glade.tensor([1, 0]), 3).tolist() == [[0, 1, 0], [1, 0, 0]]


def test_norms(rng):
    a, w, b, gate = rng.normal(size=(4, 6)), rng.normal(size=6), rng.normal(size=6), rng.normal(size=(4, 6))
    x, weight, bias = glade.tensor(a), glade.tensor(w), glade.tensor(b)
    rms = a / np.sqrt((a * a).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(to_numpy(glade.rms_norm(x)), rms, rtol=1e-12)
    np.testing.assert_allclose(to_numpy(glade.rms_norm(x, weight)), rms * w, rtol=1e-12)
    np.testing.assert_allclose(to_numpy(glade.gated_rms_norm(x, glade.tensor(gate), weight)), rms * w * gate * sigmoid(gate), rtol=1e-12)
    normed = (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(to_numpy(glade.layer_norm(x, weight, bias)), normed * w + b, rtol=1e-12)


def test_losses(rng):
    a, targets = rng.normal(size=(4, 5)), np.array([0, 4, -100, 2])
    log_p = a - np.log(np.exp(a).sum(-1, keepdims=True))
    counted = -log_p[[0, 1, 3], [0, 4, 2]]
    x, t = glade.tensor(a), glade.tensor(targets)
    np.testing.assert_allclose(glade.cross_entropy(x, t).item(), counted.mean(), rtol=1e-12)
    np.testing.assert_allclose(glade.cross_entropy(x, t, reduction="sum").item(), counted.sum(), rtol=1e-12)
    np.testing.assert_allclose(glade.nll_loss(glade.tensor(log_p), t).item(), counted.mean(), rtol=1e-12)
    smoothed = 0.9 * counted + 0.1 * -log_p[[0, 1, 3]].mean(-1)
    np.testing.assert_allclose(glade.cross_entropy(x, t, label_smoothing=0.1).item(), smoothed.mean(), rtol=1e-12)
    np.testing.assert_allclose(glade.mse_loss(x, 2 * x).item(), (a * a).mean(), rtol=1e-12)
    with pytest.raises(glade.ValueError, match="reduction"):
        glade.cross_entropy(x, t, reduction="other")
    with pytest.raises(IndexError):
        glade.cross_entropy(x, glade.tensor([0, 1, 2, 5]))


def test_swiglu_and_dropout(rng):
    a, b = rng.normal(size=(100, 10)), rng.normal(size=(100, 10))
    np.testing.assert_allclose(to_numpy(glade.swiglu(glade.tensor(a), glade.tensor(b))), a * sigmoid(a) * b, rtol=1e-12)
    dropped = to_numpy(glade.dropout(glade.tensor(a), 0.25))
    kept = dropped != 0
    np.testing.assert_allclose(dropped[kept], a[kept] / 0.75, rtol=1e-12)
    assert 0.7 < kept.mean() < 0.8
    np.testing.assert_array_equal(to_numpy(glade.dropout(glade.tensor(a), 0.25, training=False)), a)


def test_short_convolution(rng):
    a, w = rng.normal(size=(2, 5, 3)), rng.normal(size=(3, 4))
    padded = np.concatenate([np.zeros((2, 3, 3)), a], axis=1)
    expected = sum(padded[:, i : i + 5] * w[:, i] for i in range(4))
    y, state = glade.short_convolution(glade.tensor(a), glade.tensor(w))
    np.testing.assert_allclose(to_numpy(y), expected, rtol=1e-12)
    np.testing.assert_allclose(to_numpy(state), a[:, -3:].transpose(0, 2, 1))
    first, middle = glade.short_convolution(glade.tensor(a[:, :2]), glade.tensor(w))
    second, _ = glade.short_convolution(glade.tensor(a[:, 2:]), glade.tensor(w), initial_state=middle)
    np.testing.assert_allclose(to_numpy(glade.cat([first, second], 1)), expected, rtol=1e-12)


def test_random_operations_beside_pytorch():
    program = Path(__file__).parents[1] / "fuzz" / "operations.py"
    done = subprocess.run([sys.executable, program, "--seconds", "2"], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    if importlib.util.find_spec("torch"):
        assert done.returncode == 0, done.stdout + done.stderr
        assert " cases, 0 differ" in done.stdout
    else:
        assert (done.returncode, done.stderr) == (1, "operations.py: needs PyTorch, whose results it expects\n")


def test_operators_in_place_round_once():
    numbers = np.random.default_rng(0).normal(size=1000).astype("f4")
    x, y = glade.tensor(numbers).bfloat16(), glade.tensor(numbers[::-1].copy())
    for operation in ("mul", "truediv", "add", "sub", "pow"):
        for other in (0.99, 3, y):
            a, b = x.abs(), x.abs()
            expected = getattr(a, f"__{operation}__")(other).bfloat16()
            b = getattr(b, f"__i{operation}__")(other)
            assert b.dtype == glade.bfloat16 and glade.allclose(b, expected, rtol=0, atol=0, equal_nan=True), (operation, other)
            if method := {"mul": "mul_", "truediv": "div_", "add": "add_", "sub": "sub_"}.get(operation):
                assert glade.allclose(getattr(x.abs(), method)(other), expected, rtol=0, atol=0), (method, other)
    bytes_ = glade.tensor([5, 2], dtype=glade.uint8)
    assert bytes_.sub_(1).add_(3).tolist() == [7, 4]
    n = glade.tensor([5, 2])
    for change in (lambda: n.__ipow__(-1), lambda: n.__ifloordiv__(0), lambda: n.__imod__(0)):
        with pytest.raises(ValueError):
            change()
    with pytest.raises(glade.DTypeError, match="add_: int64 times 0.5 does not stay int64"):
        n.add_(n.clone(), alpha=0.5)
    assert n.tolist() == [5, 2]


def test_scaled_sums_round_once():
    numbers = np.random.default_rng(1).normal(size=1000).astype("f4")
    for dtype in (glade.bfloat16, glade.float16):
        x, y = glade.tensor(numbers).to(dtype), glade.tensor(numbers[::-1].copy()).to(dtype)
        wide_x, wide_y = x.float(), y.float()
        for alpha in (0.3, -7):
            for sign, name in ((1, "add"), (-1, "subtract")):
                for other, wide in ((y, wide_y), (0.99, 0.99)):
                    result = getattr(glade, name)(x, other, alpha=alpha)
                    expected = (wide_x + wide * (sign * alpha)).to(dtype)
                    assert result.dtype == dtype and glade.allclose(result, expected, rtol=0, atol=0), (name, alpha, dtype)
        x.requires_grad_()
        x.sub(y, alpha=2).sum().backward()
        assert x.grad.dtype == dtype and x.grad.tolist() == [1.0] * 1000


def test_log_softmax_of_large_logits():
    x = glade.tensor([1e6, 1e6, 1e6], requires_grad=True)
    y = glade.log_softmax(x, 0)
    np.testing.assert_allclose(y.tolist(), [-np.log(3)] * 3, rtol=1e-6)
    y[0].backward()
    np.testing.assert_allclose(x.grad.tolist(), [2 / 3, -1 / 3, -1 / 3], rtol=1e-6)


@pytest.mark.parametrize("p", [0.5, 1.5, 3])
def test_norms_of_zeros_have_gradients(p):
    zeros, mixed = glade.tensor([0.0, 0.0], requires_grad=True), glade.tensor([0.0, 2.0], requires_grad=True)
    zeros.norm(p).backward()
    mixed.norm(p).backward()
    assert zeros.norm(p).item() == 0 and zeros.grad.tolist() == [0, 0]
    np.testing.assert_allclose(mixed.grad.tolist(), [0, 1], rtol=1e-5)


def test_numbers_keep_their_meaning():
    for values in ([1e10], [float("nan")], [float("inf")], [-3e9]):
        with pytest.raises(ValueError, match="does not fit in int32"):
            glade.tensor(values, dtype=glade.int32)
    assert glade.tensor([2.7, -2.7], dtype=glade.int32).tolist() == [2, -2]
    assert glade.tensor(np.float64(1.5)).dtype == glade.float64 and glade.tensor(1.5).dtype == glade.float32

"""scaled_dot_product_attention: values, gradients, masks, grouped heads, blocks of rows and their memory, errors."""

import subprocess
import sys

import numpy as np
import pytest
from conftest import to_numpy

import glade
import glade.nn.functional as F

try:
    import torch
except ImportError:
    torch = None


def attention_in_numpy(q, k, v, mask=None, is_causal=False, scale=None):
    groups = q.shape[-3] // k.shape[-3] if q.ndim > 2 else 1
    if groups > 1:
        k, v = np.repeat(k, groups, -3), np.repeat(v, groups, -3)
    scores = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def inputs(rng, device, lead=(2,), heads=4, kv_heads=4, rows=5, keys=7, e=6, v=3, dtype="float64"):
    shapes = [(*lead, heads, rows, e), (*lead, kv_heads, keys, e), (*lead, kv_heads, keys, v)]
    return [glade.tensor(rng.normal(size=shape), device=device, dtype=dtype, requires_grad=True) for shape in shapes]


CASES = {
    "plain": ({}, {}), "scale": ({}, {"scale": 0.3}), "causal": ({"keys": 5}, {"is_causal": True}), "causal, more keys": ({}, {"is_causal": True}),
    "causal, fewer keys": ({"keys": 3}, {"is_causal": True}), "grouped": ({"kv_heads": 2}, {"is_causal": True}), "one kv head": ({"kv_heads": 1}, {}),
    "no batch": ({"lead": ()}, {}), "two batch dimensions": ({"lead": (2, 3), "rows": 2, "keys": 2}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(rng, device, name):
    sizes, options = CASES[name]
    q, k, v = inputs(rng, device, **sizes)
    np.testing.assert_allclose(to_numpy(glade.scaled_dot_product_attention(q, k, v, **options)), attention_in_numpy(*map(to_numpy, (q, k, v)), **options), rtol=1e-10)
    assert glade.autograd.gradcheck(lambda *x: glade.scaled_dot_product_attention(*x, **options), [q, k, v])


def test_two_dimensions(rng, device):
    q, k, v = (x[0, 0] for x in inputs(rng, device))
    np.testing.assert_allclose(to_numpy(glade.scaled_dot_product_attention(q, k, v)), attention_in_numpy(*map(to_numpy, (q, k, v))), rtol=1e-10)


@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (5, 1), (7,), (4, 5, 7), (2, 1, 5, 7), (2, 4, 1, 7)])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_masks(rng, device, shape, kv_heads):
    q, k, v = inputs(rng, device, kv_heads=kv_heads)
    seen = rng.random(shape) < 0.7
    seen[..., 0] = True
    for mask in (seen, rng.normal(size=shape)):
        given = glade.tensor(mask, device=device)
        expected = attention_in_numpy(*map(to_numpy, (q, k, v)), mask=mask)
        np.testing.assert_allclose(to_numpy(F.scaled_dot_product_attention(q, k, v, given, enable_gqa=True)), expected, rtol=1e-10)
    assert glade.autograd.gradcheck(lambda *x: glade.scaled_dot_product_attention(*x, given), [q, k, v])


def test_gradients_of_gradients(rng, device):
    q, k, v = inputs(rng, device, lead=(), heads=2, kv_heads=1, rows=3, keys=3, e=2, v=2)
    assert glade.autograd.gradgradcheck(lambda *x: glade.scaled_dot_product_attention(*x, is_causal=True), [q, k, v])


@pytest.mark.parametrize("is_causal", [False, True])
def test_blocks_of_rows(rng, device, is_causal):
    """Long enough for several blocks: 2^22 scores make one."""
    q, k, v = inputs(rng, device, lead=(1,), heads=4, kv_heads=2, rows=1500, keys=1500, e=8, v=8)
    out = glade.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    weights = glade.tensor(rng.normal(size=out.shape), device=device)
    (out * weights).sum().backward()
    np.testing.assert_allclose(to_numpy(out), attention_in_numpy(*map(to_numpy, (q, k, v)), is_causal=is_causal), rtol=1e-8, atol=1e-12)
    p, r, s = (x.detach().requires_grad_() for x in (q, k, v))
    r2, s2 = r.repeat_interleave(2, 1), s.repeat_interleave(2, 1)
    scores = p @ r2.mT * 8**-0.5
    if is_causal:
        scores = scores + glade.tensor(np.triu(np.full((1500, 1500), -np.inf), 1), device=device)
    ((scores.softmax(-1) @ s2) * weights).sum().backward()
    for x, y in ((q, p), (k, r), (v, s)):
        np.testing.assert_allclose(to_numpy(x.grad), to_numpy(y.grad), rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_narrow_types(rng, device, dtype):
    q, k, v = inputs(rng, device, rows=64, keys=64, e=16, v=16, dtype=dtype)
    out = glade.scaled_dot_product_attention(q, k, v, is_causal=True)
    expected = attention_in_numpy(*(to_numpy(x).astype("float64") for x in (q, k, v)), is_causal=True)
    assert out.dtype == q.dtype
    tolerance = {"float32": 1e-5, "bfloat16": 4e-2, "float16": 5e-3}[dtype]
    np.testing.assert_allclose(to_numpy(out).astype("float64"), expected, atol=tolerance)


def test_dropout_is_the_same_in_backward(device):
    q = k = glade.zeros(1, 1, 600, 4, device=device)  # uniform weights; more scores than are kept
    v = glade.ones(1, 1, 600, 1, device=device, requires_grad=True)
    glade.manual_seed(3)
    out = glade.scaled_dot_product_attention(q, k, v, dropout=0.5)
    assert 0.8 < out.mean().item() < 1.2 and out.var().item() > 0
    out.sum().backward()
    assert v.grad.sum().item() == pytest.approx(out.sum().item(), rel=1e-4)  # out is linear in v, which is 1 everywhere
    assert glade.scaled_dot_product_attention(q, k, v, dropout=0.0).tolist() == F.scaled_dot_product_attention(q, k, v).tolist()


MEMORY = """
import resource, glade
def attend(n):
    q, k, v = (glade.randn(1, 4, n, 16, requires_grad=True) for _ in range(3))
    glade.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
attend(64)
before = attend(512)
print(attend(6144) - before)
"""


def test_memory_does_not_hold_all_scores():
    result = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 300e6  # one matrix of scores of all heads has 604 MB, and a plain tape keeps several


def test_errors(rng):
    q, k, v = inputs(rng, "cpu")
    name = "scaled_dot_product_attention: "
    for error, words, call in [
        (glade.ShapeError, r"key is \[2, 4, 7, 5\], expected a last size of 6", lambda: glade.scaled_dot_product_attention(q, k[..., :5], v)),
        (glade.ShapeError, r"value is \[2, 4, 6, 3\], expected the heads and rows", lambda: glade.scaled_dot_product_attention(q, k, v[:, :, 1:])),
        (glade.ShapeError, "key has 3 heads, expected a divisor of query's 4", lambda: glade.scaled_dot_product_attention(q, k[:, :3], v[:, :3])),
        (glade.ShapeError, "expected equal sizes before the heads", lambda: glade.scaled_dot_product_attention(q, k[:1], v[:1])),
        (glade.ShapeError, "expected equal numbers of dimensions", lambda: glade.scaled_dot_product_attention(q, k[0], v[0])),
        (glade.ShapeError, r"shapes \[6\] and \[2, 4, 5, 7\] do not broadcast", lambda: glade.scaled_dot_product_attention(q, k, v, glade.ones(6))),
        (glade.ShapeError, "expected enable_gqa=True", lambda: F.scaled_dot_product_attention(q, k[:, :2], v[:, :2])),
        (glade.DTypeError, "query is float64, key float32", lambda: glade.scaled_dot_product_attention(q, k.float(), v)),
        (glade.DTypeError, "the mask is int64", lambda: glade.scaled_dot_product_attention(q, k, v, glade.ones(7, dtype="int64"))),
        (glade.ValueError, "dropout is 2", lambda: glade.scaled_dot_product_attention(q, k, v, dropout=2)),
        (glade.AutogradError, "the mask requires a gradient", lambda: glade.scaled_dot_product_attention(q, k, v, glade.ones(7, requires_grad=True))),
    ]:
        with pytest.raises(error, match=words) as raised:
            call()
        assert str(raised.value).startswith(name)


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_against_pytorch(rng):
    q, k, v = inputs(rng, "cpu", kv_heads=4, rows=7)
    t = [torch.tensor(to_numpy(x), requires_grad=True) for x in (q, k, v)]
    torch.nn.functional.scaled_dot_product_attention(*t, is_causal=True).square().sum().backward()
    F.scaled_dot_product_attention(q, k, v, is_causal=True).square().sum().backward()
    for x, y in zip((q, k, v), t):
        np.testing.assert_allclose(to_numpy(x.grad), y.grad.numpy(), rtol=1e-9, atol=1e-12)

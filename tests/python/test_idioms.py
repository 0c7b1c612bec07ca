"""What a PyTorch user writes means the same here: each row is a line of PyTorch, the line of NumPy with the same result, and glade's line
where it is another. The results are compared with NumPy's, and with PyTorch's where it is installed."""

import numpy as np
import pytest
from conftest import to_numpy

import glade

try:
    import torch
except ImportError:
    torch = None

SAME = [
    # Reductions
    ("x.argmax()", "x.argmax()"), ("x.T.argmax()", "x.T.argmax()"), ("x.argmax(1)", "x.argmax(1)"), ("x.argmin()", "x.argmin()"),
    ("x.argmin(0, keepdim=True)", "x.argmin(0, keepdims=True)"), ("torch.argmax(x, dim=-1)", "x.argmax(-1)"),
    ("x.max()", "x.max()"), ("x.max(1)", "(x.max(1), x.argmax(1))"), ("x.max(dim=0)[0]", "x.max(0)"), ("x.max(1, keepdim=True).values", "x.max(1, keepdims=True)"),
    ("x.min(0).indices", "x.argmin(0)"), ("torch.max(x, y)", "np.maximum(x, y)"), ("torch.min(x, y)", "np.minimum(x, y)"), ("torch.max(x, 1)[1]", "x.argmax(1)"),
    ("x.amax(1)", "x.max(1)"), ("x.amax((0, 1))", "x.max()"), ("x.amin(dim=(0,), keepdim=True)", "x.min(0, keepdims=True)"),
    ("x.sum()", "x.sum()"), ("x.sum(-1)", "x.sum(-1)"), ("x.sum((0, 1))", "x.sum()"), ("i.sum()", "i.sum()"), ("m.sum()", "m.sum()"),
    ("x.mean(1, keepdim=True)", "x.mean(1, keepdims=True)"), ("x.var(0)", "x.var(0, ddof=1)"), ("x.std()", "x.std(ddof=1)"), ("x.std(1, unbiased=False)", "x.std(1)"),
    ("x.var(dim=1, correction=0)", "x.var(1)"), ("torch.std(x, dim=0, keepdim=True)", "x.std(0, ddof=1, keepdims=True)"),
    ("x.prod()", "x.prod()"), ("x.prod(1)", "x.prod(1)"), ("i.prod(0)", "i.prod(0)"), ("m.any()", "m.any()"), ("m.all(1)", "m.all(1)"), ("(x > 0).any(dim=0)", "(x > 0).any(0)"),
    ("torch.all(x < 100)", "(x < 100).all()"), ("x.norm()", "np.linalg.norm(x)"), ("x.norm(dim=1)", "np.linalg.norm(x, axis=1)"), ("x.norm(1)", "np.abs(x).sum()"),
    ("x.norm(p=3, dim=0)", "(np.abs(x) ** 3).sum(0) ** (1 / 3)"), ("x.norm(float('inf'))", "np.abs(x).max()"), ("x.cumsum(1)", "x.cumsum(1)"),
    ("x.logsumexp(1)", "np.log(np.exp(x).sum(1))"), ("x.softmax(1)", "np.exp(x) / np.exp(x).sum(1, keepdims=True)"),
    # Shapes
    ("x.size()", "x.shape"), ("x.size(0)", "3"), ("x.size(-1)", "4"), ("x.shape", "x.shape"), ("x.numel()", "12"), ("x.dim()", "2"), ("x.nelement()", "12"),
    ("x.view(4, 3)", "x.reshape(4, 3)"), ("x.view(-1)", "x.reshape(-1)"), ("x.view((2, -1))", "x.reshape(2, -1)"), ("x.reshape(2, 6)", "x.reshape(2, 6)"),
    ("x.t()", "x.T"), ("x.T", "x.T"), ("x.mT", "x.T"), ("z.transpose(0, 2)", "z.swapaxes(0, 2)"), ("z.swapaxes(0, 1)", "z.swapaxes(0, 1)"),
    ("z.permute(2, 0, 1)", "z.transpose(2, 0, 1)"), ("z[:, :1].squeeze()", "z[:, 0]"), ("z[:, :1].squeeze(1)", "z[:, 0]"), ("z.squeeze(0)", "z"), ("x.unsqueeze(1)", "x[:, None]"),
    ("z.flatten(1)", "z.reshape(2, 12)"), ("x.repeat(2, 1)", "np.tile(x, (2, 1))"), ("x.repeat(2, 2, 1)", "np.tile(x, (2, 2, 1))"), ("v.expand(3, -1)", "np.broadcast_to(v, (3, 4))"),
    ("v.expand(3, 4)", "np.broadcast_to(v, (3, 4))"), ("x.repeat_interleave(2, dim=1)", "x.repeat(2, 1)"),
    ("x.chunk(2, dim=1)", "np.split(x, 2, 1)"), ("x.chunk(2)", "[x[:2], x[2:]]"), ("x.split(3, dim=1)", "[x[:, :3], x[:, 3:]]"), ("x.split([1, 3], dim=1)", "[x[:, :1], x[:, 1:]]"),
    ("x.unbind(0)", "list(x)"), ("x.unbind(dim=1)", "list(x.T)"), ("x.narrow(1, 1, 2)", "x[:, 1:3]"), ("x.select(0, 1)", "x[1]"),
    ("torch.cat([x, y], dim=1)", "np.concatenate([x, y], 1)"), ("torch.stack((x, y))", "np.stack([x, y])"), ("torch.concat([x, y])", "np.concatenate([x, y])"),
    ("x.roll(1, 0)", "np.roll(x, 1, 0)"), ("x.roll(-2)", "np.roll(x, -2)"), ("x.roll((1, 2), (0, 1))", "np.roll(x, (1, 2), (0, 1))"), ("x.flip(0, 1)", "x[::-1, ::-1]"), ("x.flip([1])", "x[:, ::-1]"),
    ("x.expand_as(z)", "np.broadcast_to(x, z.shape)"), ("x.view_as(z[0])", "x"), ("x.t().reshape_as(x)", "x.T.reshape(3, 4)"), ("x.tile(2)", "np.tile(x, 2)"), ("x.tile((2, 1, 3))", "np.tile(x, (2, 1, 3))"), ("torch.tile(v, (2, 2))", "np.tile(v, (2, 2))"),
    ("z.permute(dims=(2, 0, 1))", "z.transpose(2, 0, 1)"), ("x.flip(dims=(0, 1))", "x[::-1, ::-1]"), ("torch.flatten(z, start_dim=1)", "z.reshape(2, 12)"), ("z.flatten(start_dim=0, end_dim=1)", "z.reshape(6, 4)"),
    ("torch.permute(x, dims=(1, 0))", "x.T"), ("x.reshape(shape=(4, 3))", "x.reshape(4, 3)"), ("x.repeat_interleave(2)", "x.repeat(2)"),
    ("z.movedim(0, -1)", "np.moveaxis(z, 0, -1)"), ("z.moveaxis(2, 0)", "np.moveaxis(z, 2, 0)"), ("torch.movedim(z, (0, 1), (2, 0))", "np.moveaxis(z, (0, 1), (2, 0))"), ("z.swapdims(0, 1)", "z.swapaxes(0, 1)"),
    ("z.stride()", "(12, 4, 1)"), ("z.stride(0)", "12"), ("x.t().stride(1)", "4"), ("x[1].storage_offset()", "4"), ("x.element_size()", "8"), ("k.element_size()", "8"), ("x.is_floating_point()", "True"), ("i.is_floating_point()", "False"),
    ("x.ndimension()", "2"), ("x.tril()", "np.tril(x)"), ("z.triu(1)", "np.triu(z, 1)"), ("torch.tril(x, diagonal=-1)", "np.tril(x, -1)"), ("torch.ones(3, 3, dtype=torch.bool).tril()", "np.tril(np.ones((3, 3), bool))"),
    # Arithmetic
    ("x.add(y)", "x + y"), ("x.sub(y)", "x - y"), ("x.mul(2)", "x * 2"), ("x.div(y)", "x / y"), ("x.pow(2)", "x ** 2"), ("x.neg()", "-x"), ("torch.sub(x, 1)", "x - 1"),
    ("torch.mul(x, y)", "x * y"), ("torch.div(x, 2)", "x / 2"), ("torch.pow(x.abs(), 0.5)", "np.abs(x) ** 0.5"), ("2 ** i", "2 ** i"), ("i ** 2", "i ** 2"), ("i ** i", "i ** i"), ("i ** 0.5", "i.astype(np.float32) ** np.float32(0.5)"),
    ("x % 2", "x % 2"), ("i % 3", "i % 3"), ("(0 - i) % 3", "(0 - i) % 3"), ("7 % (i + 1)", "7 % (i + 1)"), ("x.remainder(y)", "x % y"), ("x // y", "x // y"), ("(0 - i) // 2", "(0 - i) // 2"), ("7 // (i + 1)", "7 // (i + 1)"),
    ("x.floor_divide(2)", "x // 2"), ("i & 1", "i & 1"), ("i | 4", "i | 4"), ("i ^ i", "i ^ i"), ("~i", "~i"), ("m & ~m", "m & ~m"), ("m | (x > 0)", "m | (x > 0)"), ("m ^ (x > 0)", "m ^ (x > 0)"), ("1 & i", "1 & i"),
    ("1 - m.int()", "1 - m.astype(np.int32)"), ("m * x", "m * x"), ("i / 2", "(i / 2).astype(np.float32)"), ("i + 0.5", "(i + 0.5).astype(np.float32)"),
    ("x.floor()", "np.floor(x)"), ("x.ceil()", "np.ceil(x)"), ("(x * 4).round() / 2", "np.rint(x * 4) / 2"), ("x.trunc()", "np.trunc(x)"), ("x.sign()", "np.sign(x)"),
    ("x.expm1()", "np.expm1(x)"), ("x.abs().log1p()", "np.log1p(np.abs(x))"), ("x.erf()", "np.vectorize(math.erf)(x)"), ("x.exp()", "np.exp(x)"),
    ("x.clamp(min=0)", "np.maximum(x, 0)"), ("x.clamp(max=0.5)", "np.minimum(x, 0.5)"), ("x.clamp(-1, 1)", "x.clip(-1, 1)"), ("x.clamp(min=-1, max=1)", "x.clip(-1, 1)"), ("x.clip(0, 1)", "x.clip(0, 1)"),
    ("x.clamp(min=y)", "np.maximum(x, y)"), ("torch.clamp(i, min=2)", "np.maximum(i, 2)"),
    ("x.lerp(y, 0.3)", "x + 0.3 * (y - x)"), ("torch.lerp(x, y, x)", "x + x * (y - x)"), ("x.addcmul(x, y, value=0.5)", "x + 0.5 * x * y"), ("torch.addcdiv(x, x, y)", "x + x / y"), ("torch.maximum(x, y)", "np.maximum(x, y)"), ("x.minimum(y)", "np.minimum(x, y)"),
    ("x.add(y, alpha=2)", "x + 2 * y"), ("torch.add(x, y, alpha=0.5)", "x + 0.5 * y"), ("x.sub(2, alpha=3)", "x - 6"), ("i.sub(i, alpha=2)", "-i"), ("x.div(y, rounding_mode='floor')", "np.floor(x / y)"),
    ("torch.div(x, 0.25, rounding_mode='trunc')", "np.trunc(x / 0.25)"), ("x.div(y, rounding_mode=None)", "x / y"), ("torch.div(i, 4, rounding_mode='floor')", "i // 4"),
    # Comparisons and masks
    ("x.logical_and(m)", "np.logical_and(x, m)"), ("torch.logical_or(i, m)", "np.logical_or(i, m)"), ("i.logical_xor(x)", "np.logical_xor(i, x)"), ("torch.logical_not(i)", "i == 0"), ("m.logical_not()", "~m"),
    ("x.masked_select(m)", "x[m]"), ("torch.masked_select(x, v > 0)", "x[np.broadcast_to(v > 0, x.shape)]"), ("i.count_nonzero()", "np.count_nonzero(i)"), ("torch.count_nonzero(i, dim=0)", "np.count_nonzero(i, 0)"),
    ("x.eq(y)", "x == y"), ("x.ne(y)", "x != y"), ("x.lt(y)", "x < y"), ("x.le(0)", "x <= 0"), ("x.gt(y)", "x > y"), ("torch.ge(x, 0)", "x >= 0"), ("torch.eq(i, 2)", "i == 2"),
    ("torch.equal(x, x)", "True"), ("torch.equal(x, y)", "False"), ("x.equal(x.clone())", "True"), ("torch.allclose(x, x + 1e-9)", "True"), ("x.allclose(y)", "False"), ("torch.isclose(x, y)", "np.isclose(x, y)"),
    ("torch.isnan(x / 0 * 0)", "np.isnan(x * np.nan)"), ("(x / 0).isinf()", "np.ones((3, 4), bool)"), ("torch.isfinite(x)", "np.isfinite(x)"),
    ("x.masked_fill(m, 0)", "np.where(m, 0, x)"), ("x.masked_fill(m, float('-inf'))", "np.where(m, -np.inf, x)"), ("x.masked_fill(m, torch.tensor(2.0))", "np.where(m, 2, x)"), ("torch.where(m, x, y)", "np.where(m, x, y)"), ("x[m]", "x[m]"),
    ("torch.where(x > 0, 1.0, 0.0)", "np.where(x > 0, np.float32(1), np.float32(0))"), ("torch.where(m, 2, -3)", "np.where(m, 2, -3)"), ("torch.where(m)", "np.nonzero(m)"),
    ("m.nonzero()", "np.argwhere(m)"), ("torch.nonzero(x > 0, as_tuple=True)", "np.nonzero(x > 0)"),
    # Order
    ("v.sort()", "(np.sort(v), np.argsort(v))"), ("x.sort(dim=0).values", "np.sort(x, 0)"), ("x.sort(1, True)[0]", "-np.sort(-x, 1)"), ("x.argsort()", "x.argsort(-1)"), ("torch.argsort(v, descending=True)", "(-v).argsort()"),
    ("torch.sort(x, dim=0, stable=True)[1]", "x.argsort(0)"), ("x.topk(2, dim=1, largest=True, sorted=True)[1]", "(-x).argsort()[:, :2]"),
    ("x.topk(2)", "(-np.sort(-x)[:, :2], (-x).argsort()[:, :2])"), ("torch.topk(v, 3, largest=False).values", "np.sort(v)[:3]"),
    # By position
    ("x.gather(1, j)", "np.take_along_axis(x, j, 1)"), ("x.index_select(1, k)", "x[:, k]"), ("x[:, k]", "x[:, k]"), ("torch.nn.functional.embedding(i % 3, x)", "x[i % 3]", "glade.embedding(i % 3, x)"),
    ("x.scatter(1, j, 9.0)", "put_along(x, j, 9.0)"), ("x.scatter(1, j, y[:, :2])", "put_along(x, j, y[:, :2])"), ("x.index_add(1, k, y[:, :2])", "add_columns(x, k, y[:, :2])"),
    # Products
    ("x @ y.t()", "x @ y.T"), ("torch.matmul(z, s)", "z @ s"), ("torch.mm(x, s)", "x @ s"), ("torch.bmm(z, z.mT)", "z @ z.swapaxes(1, 2)"), ("x.mm(s)", "x @ s"),
    ("torch.outer(v, v)", "np.outer(v, v)"), ("v.dot(x[0])", "v @ x[0]"), ("torch.dot(k, k)", "k @ k"), ("x.mv(v)", "x @ v"), ("torch.mv(s, v)", "s @ v"), ("torch.addmm(v, x, s)", "v + x @ s"), ("v.addmm(x, s, beta=0.5, alpha=2)", "0.5 * v + 2 * (x @ s)"),
    ("torch.baddbmm(z, z, torch.stack([s, s]))", "z + z @ s"), ("v.addmm(x, s, beta=0)", "x @ s"), ("z.baddbmm(z, torch.stack([s, s]), alpha=2)", "z + 2 * (z @ s)"),
    ("i @ i.t()", "i @ i.T"), ("torch.matmul(i, k[[0, 0, 0, 1]])", "i @ k[[0, 0, 0, 1]]"),
    ("torch.einsum('ij,kj->ik', x, y)", "np.einsum('ij,kj->ik', x, y)"), ("torch.einsum('bij,ij->b', z, x)", "np.einsum('bij,ij->b', z, x)"), ("torch.einsum('...ij,jk', z, s)", "np.einsum('...ij,jk', z, s)"),
    ("torch.einsum('ii', s)", "np.einsum('ii', s)"), ("torch.einsum('ij->ji', [x])", "x.T"), ("torch.einsum('i,j,ij->', x[:, 0], v, x)", "np.einsum('i,j,ij->', x[:, 0], v, x)"),
    # Layers and losses
    ("F.relu(x)", "np.maximum(x, 0)"), ("F.softmax(x, dim=1)", "np.exp(x) / np.exp(x).sum(1, keepdims=True)"), ("F.linear(x, s, v)", "x @ s.T + v"), ("F.embedding(i % 3, x)", "x[i % 3]"),
    ("F.softmax(x, dim=0, dtype=torch.float32)", "(np.exp(x) / np.exp(x).sum(0)).astype(np.float32)"), ("F.log_softmax(x, 0, dtype=torch.float64)", "x - np.log(np.exp(x).sum(0))"),
    ("nn.KLDivLoss(reduction='batchmean')(x, y.softmax(1))", "(kl_softmax(y) * (np.log(kl_softmax(y)) - x)).sum() / 3"),
    ("F.one_hot(i % 3)", "np.eye(3, dtype=int)[i % 3]"), ("F.one_hot(i, num_classes=6)", "np.eye(6, dtype=int)[i]"), ("F.pad(x, (1, 2))", "np.pad(x, ((0, 0), (1, 2)))"),
    ("F.normalize(x, dim=1)", "x / np.linalg.norm(x, axis=1, keepdims=True)"), ("F.mse_loss(x, y)", "((x - y) ** 2).mean()"), ("F.l1_loss(x, y, reduction='none')", "np.abs(x - y)"),
    ("F.cross_entropy(x, k[[0, 1, 1]], reduction='none')", "np.log(np.exp(x).sum(1)) - x[[0, 1, 2], k[[0, 1, 1]]]"),
    ("F.binary_cross_entropy_with_logits(x, m.to(x.dtype), reduction='sum')", "np.logaddexp(0, np.where(m, -x, x)).sum()"), ("nn.MSELoss(reduction='sum')(x, y)", "((x - y) ** 2).sum()"),
    ("nn.Sequential(nn.ReLU(), nn.Flatten())(z)", "np.maximum(z, 0).reshape(2, 12)"), ("nn.CrossEntropyLoss()(z, i[:2] % 3)", "cross_entropy(z, i[:2] % 3)"),
    ("len(nn.Linear(2, 3).state_dict())", "2"), ("nn.Linear(2, 3).in_features", "2"), ("nn.Identity()(x)", "x"),
    # Making tensors
    ("torch.full_like(x, 2)", "np.full_like(x, 2)"), ("torch.full_like(i, 2)", "np.full_like(i, 2)"), ("torch.rand_like(x).shape", "x.shape"), ("torch.randn_like(x).dtype == x.dtype", "True"),
    ("torch.ones(2, dtype=float)", "np.ones(2)"), ("torch.zeros(2, dtype=int)", "np.zeros(2, int)"), ("torch.ones(1, dtype=torch.float)", "np.ones(1, np.float32)"), ("torch.ones(1, dtype=torch.long)", "np.ones(1, int)"),
    ("torch.ones(1, dtype=torch.half)", "np.ones(1, np.float16)"), ("torch.ones(1, dtype=torch.double)", "np.ones(1)"), ("x.to(torch.float)", "x.astype(np.float32)"), ("torch.randperm(9).sort()[0]", "np.arange(9)"),
    ("torch.randint(3, (2, 2)).shape", "(2, 2)"), ("torch.randint(5, 6, (3,))", "np.full(3, 5)"), ("torch.multinomial(torch.tensor([0.0, 2.0, 0.0]), 3, replacement=True)", "np.ones(3, int)"), ("torch.arange(3)", "np.arange(3)"),
    ("x.new_zeros(2, 3)", "np.zeros((2, 3))"), ("i.new_ones((2,))", "np.ones(2, int)"), ("x.new_full((2,), 7)", "np.full(2, 7.0)"), ("i.new_tensor([1, 2])", "np.array([1, 2])"), ("x.new_tensor(3)", "np.array(3.0)"), ("x.new_empty(2, dtype=torch.long).shape", "(2,)"),
    ("i.to(x)", "i.astype(float)"), ("x.to('cpu', non_blocking=True)", "x"), ("torch.from_numpy(np.arange(3))", "np.arange(3)"), ("x.data", "x"), ("torch.ones(2, dtype=torch.int64).dtype == torch.long", "True"),
    ("isinstance(x.dtype, torch.dtype)", "True"), ("torch.finfo(x.dtype).max", "np.finfo(float).max"), ("torch.finfo(torch.float32).eps", "np.finfo(np.float32).eps"), ("torch.finfo(torch.float16).min", "np.finfo(np.float16).min"),
    ("torch.finfo(torch.half).tiny", "np.finfo(np.float16).tiny"), ("torch.finfo(torch.bfloat16).bits", "16"), ("torch.iinfo(i.dtype).min", "np.iinfo(int).min"), ("torch.iinfo(torch.uint8).max", "255"),
    ("torch.inf", "np.inf"), ("torch.pi", "np.pi"), ("torch.nan", "np.nan"), ("torch.e", "np.e"), ("torch.Generator().manual_seed(3).initial_seed()", "3", "glade.Generator().manual_seed(3).state[0]"),
    ("isinstance(nn.Linear(1, 1).weight, nn.Parameter)", "True"), ("isinstance(x, nn.Parameter)", "False"),
    ("i.type_as(x)", "i.astype(float)"), ("x.to('cpu', torch.float32)", "x.astype(np.float32)"), ("x.cpu().is_cuda", "False"), ("torch.device('cpu').type == 'cpu'", "True"), ("isinstance(torch.device('cpu'), torch.device)", "True"),
]  # fmt: skip

# Statements that change x.
IN_PLACE = [
    ("x.add_(y)", "x += y"), ("x.add_(y, alpha=2)", "x += 2 * y"), ("x.sub_(1)", "x -= 1"), ("x.sub_(y, alpha=0.5)", "x -= 0.5 * y"), ("x.mul_(y)", "x *= y"), ("x.mul_(2)", "x *= 2"), ("x.div_(y)", "x /= y"), ("x.div_(2)", "x /= 2"),
    ("x.clamp_(min=0)", "x[:] = np.maximum(x, 0)"), ("x.clamp_(-1, 1)", "x[:] = x.clip(-1, 1)"), ("x.masked_fill_(m, 0)", "x[m] = 0"), ("x.fill_(3)", "x[:] = 3"), ("x.zero_()", "x[:] = 0"), ("x.copy_(y)", "x[:] = y"),
    ("x.scatter_(1, j, 9.0)", "np.put_along_axis(x, j, 9.0, 1)"), ("x.scatter_(1, j, y[:, :2])", "np.put_along_axis(x, j, y[:, :2], 1)"), ("x.scatter_add_(1, j, y[:, :2])", "np.add.at(x, (np.arange(3)[:, None], j), y[:, :2])"),
    ("x.index_add_(1, k, y[:, :2])", "np.add.at(x, (slice(None), k), y[:, :2])"), ("x.uniform_(2, 3).sub_(x)", "x[:] = 0"), ("x.normal_(5, 0)", "x[:] = 5"),
    ("x[m] = 0", "x[m] = 0"), ("x[:, 1] += 1", "x[:, 1] += 1"), ("x //= 2", "x //= 2"), ("x %= 2", "x %= 2"), ("x **= 2", "x **= 2"), ("i &= 3", "i &= 3"), ("i |= 1", "i |= 1"), ("i ^= 5", "i ^= 5"),
]  # fmt: skip


def inputs():
    rng = np.random.default_rng(7)
    arrays = {"x": rng.normal(size=(3, 4)), "y": rng.normal(size=(3, 4)), "z": rng.normal(size=(2, 3, 4)), "v": rng.normal(size=4), "s": rng.normal(size=(4, 4))}
    arrays |= {"i": rng.integers(0, 6, (3, 4)), "j": np.array([[0, 3], [2, 1], [1, 0]]), "k": np.array([3, 1]), "m": rng.normal(size=(3, 4)) > 0}
    return arrays


def put_along(a, indices, values):
    result = a.copy()
    np.put_along_axis(result, indices, values, 1)
    return result


def add_columns(a, indices, source):
    result = a.copy()
    np.add.at(result, (slice(None), indices), source)
    return result


def cross_entropy(logits, targets):
    """With the classes in dimension 1."""
    logits = np.moveaxis(logits, 1, -1)
    return (np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, targets[..., None], -1)[..., 0]).mean()


def kl_softmax(x):
    return np.exp(x) / np.exp(x).sum(1, keepdims=True)


def run_numpy(line, arrays, execute=eval):
    import math

    with np.errstate(all="ignore"):
        return execute(line, {"np": np, "math": math, "put_along": put_along, "add_columns": add_columns, "cross_entropy": cross_entropy, "kl_softmax": kl_softmax}, arrays)


def same(result, expected, line):
    if isinstance(expected, (tuple, list)) and not isinstance(expected, np.ndarray):
        assert len(result) == len(expected), line
        for got, wanted in zip(result, expected):
            same(got, wanted, line)
        return
    if isinstance(result, glade.Tensor):
        result = to_numpy(result)
        if isinstance(expected, np.ndarray):
            assert result.dtype == expected.dtype, line
    np.testing.assert_allclose(result, expected, rtol=1e-6 if getattr(expected, "dtype", None) == np.float32 else 1e-11, atol=1e-12, err_msg=line)
    assert np.shape(result) == np.shape(expected), line


def glade_line(row):
    return row[2] if len(row) > 2 else row[0].replace("torch.", "glade.")


@pytest.mark.parametrize("row", SAME, ids=[row[0] for row in SAME])
def test_idiom(row, device):
    tensors = {name: glade.tensor(a, device=device) for name, a in inputs().items()}
    result = eval(glade_line(row), {"glade": glade, "nn": glade.nn, "F": glade.nn.functional, "np": np, "float": float, "int": int}, tensors)
    same(result, run_numpy(row[1], inputs()), row[0])
    if torch is not None:
        theirs = eval(row[0], {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "np": np}, {name: torch.tensor(a) for name, a in inputs().items()})
        same(result, from_torch(theirs), row[0])


def from_torch(value):
    if isinstance(value, torch.Tensor):
        return value.numpy()
    return tuple(map(from_torch, value)) if isinstance(value, (tuple, list)) else value


@pytest.mark.parametrize("row", IN_PLACE, ids=[row[0] for row in IN_PLACE])
def test_in_place_idiom(row, device):
    arrays = inputs()
    tensors = {name: glade.tensor(a, device=device) for name, a in arrays.items()}
    address = tensors["x"].data_ptr()
    exec(row[0], {}, tensors)
    run_numpy(row[1], arrays, exec)
    assert tensors["x"].data_ptr() == address
    for name in ("x", "i"):
        same(tensors[name], arrays[name], row[0])


def test_values_and_indices():
    x = glade.tensor([[1.0, 5.0], [7.0, 2.0]])
    values, indices = x.max(1)
    assert values.tolist() == [5, 7] and indices.tolist() == [1, 0]
    assert x.max(0).values.tolist() == [7, 5] and x.max(dim=0)[1].tolist() == [1, 0]
    with pytest.raises(glade.ValueError, match="dim is several dimensions: expected one, or write amax"):
        x.max((0, 1))


REFUSED = [
    ("m - True", "DTypeError", "subtract: expected numbers, got bool and bool"), ("True - m", "DTypeError", "subtract: expected numbers, got bool and bool"),
    ("i ** -1", "ValueError", "integers to the power -1 are no integers"), ("i % 0", "ValueError", "division of integers by 0"), ("x.T.view(-1)", "ShapeError", "use reshape"), ("x.view(5, 5)", "ShapeError", "^view: x is"), ("x.reshape(5, 5)", "ShapeError", "^reshape: x is"),
    ("x & 1", "DTypeError", "bitwise_and: expected integers or bools, got float64"), ("x.clamp()", "ValueError", "expected min, max or both"), ("z.t()", "ShapeError", "at most two dimensions"),
    ("x.masked_fill(x, 0)", "DTypeError", "mask is float64: expected bool"), ("i.div_(2)", "DTypeError", "does not stay int64"), ("glade.embedding(x, i)", "DTypeError", r"expected embedding\(indices, weight\)"),
    ("glade.ones(1, dtype='float')", "ValueError", "unknown dtype 'float': expected float64, float32"), ("x.norm('nuc')", "ValueError", "p is 'nuc'"), ("x.div(2, rounding_mode='up')", "ValueError", "rounding_mode is 'up', expected 'floor' or 'trunc'"),
    ("i.div(2, rounding_mode='trunc')", "DTypeError", "rounding_mode 'trunc' takes floating-point tensors"), ("x.topk(5)", "ValueError", "k is 5: expected at most 4"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "error", "message"), REFUSED, ids=[row[0] for row in REFUSED])
def test_refused(line, error, message):
    tensors = {name: glade.tensor(a) for name, a in inputs().items()}
    with pytest.raises(getattr(glade, error), match=message) as caught:
        eval(line, {"glade": glade}, tensors)
    assert "\n" not in str(caught.value)


MISSING = [
    ("x.log2()", r"write x.log\(\) / math.log\(2\)"), ("x.relu_()", r"write x = x.relu\(...\)"), ("x.median()", r"write x.sort\(dim\)"), ("x.grad_fn", "write x.is_leaf"), ("x.index_fill_(0, k, 1)", r"write x\[indices\] = value"),
    ("glade.asarray(x)", r"module 'glade' has no 'asarray': write glade.as_tensor\(array\)"), ("glade.median(x)", "'median': write x.sort"), ("glade.conv2d(x)", "'conv2d': glade does not have it; docs/limits.md"),
    ("glade.nn.Conv2d(3, 3, 3)", "module 'glade.nn' has no 'Conv2d': glade does not have it"), ("glade.nn.LSTM(3, 3)", "does not have it"), ("F.leaky_relu(x)", r"write glade.maximum\(x, slope \* x\)"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "message"), MISSING, ids=[row[0] for row in MISSING])
def test_missing_names_say_what_to_write(line, message):
    tensors = {name: glade.tensor(a) for name, a in inputs().items()}
    with pytest.raises(AttributeError, match=message) as caught:
        eval(line, {"glade": glade, "F": glade.nn.functional}, tensors)
    assert "\n" not in str(caught.value)
    assert caught.value.name == line.partition("(")[0].rpartition(".")[2]


def test_what_is_proposed_for_missing_names_is_there():
    """Of methods; hints are expressions of x, or begin with one."""
    import re

    from glade import _missing

    for table in (_missing._TENSORS, _missing._FUNCTIONS, _missing._LAYERS):
        for name, text in table.items():
            for method in re.findall(r"\bx\.(\w+)", text):
                assert hasattr(glade.Tensor, method), (name, text)
            for function in re.findall(r"\bglade\.((?:\w+\.)*\w+)", text):
                owner = glade
                for part in function.split("."):
                    assert hasattr(owner, part), (name, text)
                    owner = getattr(owner, part)
    assert not [name for name in _missing._TENSORS if hasattr(glade.Tensor, name)]
    assert not [name for name in _missing._FUNCTIONS if hasattr(glade, name)]
    assert not [name for name in _missing._LAYERS if hasattr(glade.nn, name) or hasattr(glade.nn.functional, name)]


def test_unknown_names_are_plain_errors():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        glade.ones(1).nonsense
    with pytest.raises(AttributeError, match="module 'glade' has no 'nonsense'$"):
        glade.nonsense
    assert not hasattr(glade.ones(1), "__cuda_array_interface__")


def test_data_shares_memory_and_stays_where_it_is():
    x = glade.ones(2, requires_grad=True)
    x.data.fill_(3)
    assert x.tolist() == [3, 3] and not x.data.requires_grad and x.data.data_ptr() == x.data_ptr()
    with pytest.raises(AttributeError, match=r"write x.copy_\(value\) within glade.no_grad"):
        x.data = glade.zeros(2)


def test_tensors_are_made_by_functions():
    with pytest.raises(TypeError, match=r"made by glade.tensor\(values\)"):
        glade.Tensor([1, 2])


def test_devices_have_a_type_and_an_index():
    assert glade.device("cpu", 0) == glade.device("cpu")
    with pytest.raises(glade.DeviceError, match="cuda:99"):
        glade.device("cuda", 99)


def test_limits_of_other_dtypes():
    with pytest.raises(glade.DTypeError, match=r"finfo: dtype is int64.*iinfo"):
        glade.finfo("int64")
    with pytest.raises(glade.DTypeError, match=r"iinfo: dtype is float32.*finfo"):
        glade.iinfo(glade.float32)
    assert repr(glade.iinfo(glade.uint8)) == "iinfo(min=0, max=255, dtype=uint8)" and "eps=0.0009765625" in repr(glade.finfo("float16"))


def test_bool_behind_dim_is_refused():
    """Of std and var: PyTorch's `unbiased` stands there."""
    with pytest.raises(TypeError):
        glade.ones(3, 4).std(0, False)


def test_gradients_of_methods(rng):
    x, mask = glade.tensor(rng.normal(size=(3, 4)), requires_grad=True), glade.tensor(rng.normal(size=(3, 4)) > 0)
    lines = [
        lambda t: t.view(4, 3).t(), lambda t: t.max(1).values, lambda t: t.std(0), lambda t: t.norm(dim=1), lambda t: t.prod(1), lambda t: t.masked_fill(mask, 2),
        lambda t: t.repeat(2, 1), lambda t: t.chunk(2, 1)[1], lambda t: t.tril(), lambda t: t.roll(1, 0), lambda t: t.sort(1).values, lambda t: t.topk(2)[0],
        lambda t: glade.einsum("ij,kj->ik", t, t), lambda t: t % 0.7, lambda t: t.pow(3), lambda t: t.erf(), lambda t: t.clamp(min=0.1),
        lambda t: t.add(t, alpha=3), lambda t: t.div(0.7, rounding_mode="floor") + t, lambda t: t.repeat_interleave(2), lambda t: glade.where(mask, t, 2.0),
        lambda t: t.index_add(1, glade.tensor([2, 0]), t[:, :2]), lambda t: t.scatter(1, glade.tensor([[0], [1], [0]]), t[:, 1:2]),
    ]  # fmt: skip
    for line in lines:
        assert glade.autograd.gradcheck(lambda t, line=line: line(t).square(), x)


def test_numbers_differ_between_processes():
    """Without a seed; with one they are the same."""
    import subprocess
    import sys

    def numbers(seed):
        program = f"import glade; {seed}; print(glade.randn(3).tolist())"
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert numbers("0") != numbers("0")
    assert numbers("glade.manual_seed(4)") == numbers("glade.manual_seed(4)")

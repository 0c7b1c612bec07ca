"""glade's functions under PyTorch's names and with its order of arguments: `import glade.nn.functional as F`.

Where the same function stands in glade itself, that one has glade's conventions; cross_entropy differs in more than names: here the
classes of logits with more than two dimensions are in dimension 1, as in PyTorch, there in the last.

>>> import glade, glade.nn.functional as F
>>> F.cross_entropy(glade.zeros(2, 5, 7), glade.zeros(2, 7, dtype="int64")).shape
()
>>> F.relu(glade.tensor([-1.0, 2.0])).tolist()
[0.0, 2.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING as _TYPE_CHECKING

import glade
from glade import _glade
from glade._glade import Tensor, _nn
from glade._missing import for_module as _for_module
from glade.typing import DTypeLike

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "dropout", "embedding", "gelu", "kl_div", "l1_loss", "layer_norm", "linear",
    "log_softmax", "logsigmoid", "mse_loss", "nll_loss", "normalize", "one_hot", "pad", "relu", "rms_norm", "scaled_dot_product_attention", "sigmoid", "silu", "softmax", "softplus", "tanh",
]  # fmt: skip


if not _TYPE_CHECKING:  # type checkers know which names there are
    __getattr__ = _for_module("glade.nn.functional")


# ---- layers ----------------------------------------------------------------------------------------------------------


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input [..., in] times weight [out, in] transposed, plus bias [out]. See glade.linear."""
    return glade.linear(input, weight, bias)


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of weight [n, d] for int64 or int32 indices of any shape; no gradient flows to row padding_idx."""
    if padding_idx is not None and padding_idx < -len(weight):
        raise glade.IndexError(f"embedding: padding_idx is {padding_idx}, expected one of {len(weight)} rows")
    row = -1 if padding_idx is None else padding_idx + len(weight) if padding_idx < 0 else padding_idx
    return glade.embedding(weight=weight, indices=input, padding_idx=row)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """int64 [..., num_classes] with a 1 at each index; num_classes -1 is the largest index plus one, for which a GPU is waited for."""
    return glade.one_hot(tensor, int(tensor.max().item()) + 1 if num_classes == -1 else num_classes)


def dropout(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """input with each element zeroed with probability p and the rest scaled by 1 / (1 - p) while training."""
    return glade.dropout(input, p, training)


def _check_last(function: str, input: Tensor, normalized_shape: int | Sequence[int]) -> None:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if len(shape) != 1 or input.shape[-1:] != shape:
        raise glade.ShapeError(f"{function}: normalized_shape is {list(shape)}, expected {list(input.shape[-1:])}, the last size of input {list(input.shape)}")


def layer_norm(
    input: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """glade.layer_norm over the last dimension, whose size is normalized_shape (ShapeError)."""
    _check_last("layer_norm", input, normalized_shape)
    return glade.layer_norm(input, weight, bias, eps)


def rms_norm(input: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """glade.rms_norm over the last dimension, whose size is normalized_shape (ShapeError). eps is by default that of the dtype."""
    _check_last("rms_norm", input, normalized_shape)
    machine = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
    return glade.rms_norm(input, weight, machine.get(input.dtype.name, 2.0**-23) if eps is None else eps)


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """input divided by its p-norm along dim, or by eps where that is larger."""
    return _glade._normalize(input, p, dim, eps)


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float = 0.0) -> Tensor:
    """input with `value` around it: pad has two numbers for the last dimension, before and behind, then two for the one before it, and so
    on; negative ones cut off. ValueError for other modes than "constant"."""
    if mode != "constant":
        raise glade.ValueError(f"pad: mode is {mode!r}, expected 'constant'")
    return _glade._pad(input, list(pad), value)


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(query key^T scale) value. See glade.scaled_dot_product_attention. ShapeError for grouped heads without enable_gqa."""
    if not enable_gqa and query.ndim > 2 and key.ndim > 2 and query.shape[-3] != key.shape[-3]:
        raise glade.ShapeError(f"scaled_dot_product_attention: query has {query.shape[-3]} heads and key {key.shape[-3]}, expected enable_gqa=True for groups")
    return glade.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)


# ---- activations -----------------------------------------------------------------------------------------------------


def relu(input: Tensor) -> Tensor:
    """max(input, 0)"""
    return input.relu()


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """input * Phi(input), Phi the normal distribution; approximate="tanh" takes the form by tanh."""
    return input.gelu(approximate)


def silu(input: Tensor) -> Tensor:
    """input * sigmoid(input)"""
    return input.silu()


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + exp(-input))"""
    return input.sigmoid()


def logsigmoid(input: Tensor) -> Tensor:
    """log(sigmoid(input)), without overflow."""
    return input.logsigmoid()


def tanh(input: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return input.tanh()


def softplus(input: Tensor) -> Tensor:
    """log(1 + exp(input)), without overflow."""
    return input.softplus()


def softmax(input: Tensor, dim: int = -1, *, dtype: DTypeLike | None = None) -> Tensor:
    """exp(input) / sum(exp(input)) along dim, of the input converted to `dtype` where that is given."""
    return (input if dtype is None else input.to(dtype)).softmax(dim)


def log_softmax(input: Tensor, dim: int = -1, *, dtype: DTypeLike | None = None) -> Tensor:
    """The logarithm of softmax(input, dim, dtype=dtype)."""
    return (input if dtype is None else input.to(dtype)).log_softmax(dim)


# ---- losses ----------------------------------------------------------------------------------------------------------


def cross_entropy(input: Tensor, target: Tensor, *, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0) -> Tensor:
    """The cross entropy of logits [C], [N, C] or [N, C, d1, ...] against class indices of the other dimensions, as nn.CrossEntropyLoss."""
    return _nn.CrossEntropyLoss(ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing).forward(input, target)


def nll_loss(input: Tensor, target: Tensor, *, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    """The same from log-probabilities, as log_softmax gives them."""
    return _nn.NLLLoss(ignore_index=ignore_index, reduction=reduction).forward(input, target)


def mse_loss(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """(input - target)^2, its mean, sum or neither."""
    return glade.mse_loss(input, target, reduction)


def l1_loss(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """|input - target|, its mean, sum or neither."""
    return glade.l1_loss(input, target, reduction)


def binary_cross_entropy(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """-(y log p + (1 - y) log(1 - p)) for probabilities p and targets y. See glade.binary_cross_entropy."""
    return glade.binary_cross_entropy(input, target, reduction)


def binary_cross_entropy_with_logits(input: Tensor, target: Tensor, *, reduction: str = "mean", pos_weight: Tensor | None = None) -> Tensor:
    """The same for logits, without overflow. See glade.binary_cross_entropy_with_logits."""
    return glade.binary_cross_entropy_with_logits(input, target, reduction, pos_weight)


def kl_div(input: Tensor, target: Tensor, *, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """target * (log(target) - input) for log-probabilities `input`; reduction "batchmean" is the sum over the size of dimension 0."""
    if reduction == "batchmean":
        return glade.kl_div(input, target, "sum", log_target) / (input.shape[0] if input.ndim > 0 else 1)
    return glade.kl_div(input, target, reduction, log_target)

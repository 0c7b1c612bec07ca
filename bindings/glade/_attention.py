"""The gated recurrence under ejkernel's operation names, whose arguments they take."""

from __future__ import annotations

from typing import Any

from glade._glade import Tensor, recurrent, recurrent_gla
from glade.typing import ArrayLike

_PLATFORMS = (None, "auto", "cpu", "cuda", "cute", "pallas", "tilelang", "triton", "xla")


def _check_platform(function: str, platform: str | None) -> None:
    if platform not in _PLATFORMS:
        raise ValueError(f"{function}: platform is {platform!r}, expected one of {_PLATFORMS}")


def recurrent_attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, g: ArrayLike | None = None, g_gamma: ArrayLike | None = None,
    gk: ArrayLike | None = None, gv: ArrayLike | None = None, initial_state: ArrayLike | None = None,
    cu_seqlens: ArrayLike | None = None, /, *, softmax_scale: float | None = None, reverse: bool = False,
    return_state: bool = False, platform: str | None = None, cfg: Any = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """glade.recurrent, which describes the arguments and errors: the output, and with return_state (output, final state).

    `platform` and `cfg` are taken for compatibility with ejkernel and change nothing: the tensors' device decides.
    ValueError for a platform that ejkernel does not know.
    """
    _check_platform("recurrent_attention", platform)
    results = recurrent(query, key, value, g, g_gamma, gk, gv, softmax_scale, initial_state, reverse, cu_seqlens)
    return results if return_state else results[0]


def gla_attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, g: ArrayLike | None = None, g_gamma: ArrayLike | None = None,
    initial_state: ArrayLike | None = None, cu_seqlens: ArrayLike | None = None, /, *,
    softmax_scale: float | None = None, reverse: bool = False, return_state: bool = False,
    platform: str | None = None, cfg: Any = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """glade.recurrent_gla, which describes the arguments and errors: the output, and with return_state (output, final state).

    `platform` and `cfg` are taken for compatibility with ejkernel and change nothing: the tensors' device decides.
    ValueError for a platform that ejkernel does not know.
    """
    _check_platform("gla_attention", platform)
    results = recurrent_gla(query, key, value, g, g_gamma, softmax_scale, initial_state, reverse, cu_seqlens)
    return results if return_state else results[0]

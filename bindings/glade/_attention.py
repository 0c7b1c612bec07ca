"""The gated recurrence under ejkernel's operation names, whose arguments they take."""

from __future__ import annotations

from typing import Any

from glade._glade import AttentionConfig, GLAttention, RecurrentAttention, Tensor
from glade.typing import ArrayLike

_recurrent = RecurrentAttention()
_gla = GLAttention()


def recurrent_attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, g: ArrayLike | None = None, g_gamma: ArrayLike | None = None,
    gk: ArrayLike | None = None, gv: ArrayLike | None = None, initial_state: ArrayLike | None = None,
    cu_seqlens: ArrayLike | None = None, /, *, softmax_scale: float | None = None, reverse: bool = False,
    return_state: bool = False, platform: str | None = None, cfg: AttentionConfig | dict[str, Any] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """glade.recurrent, which describes the arguments and errors: the output, and with return_state (output, final state).

    The tensors stay where they are: `platform` 'cuda' or 'cpu' says where that must be, 'auto' (or None) takes either.
    `cfg` says how both passes are computed; without it, a configuration is chosen for each, as docs/tuning.md says.
    ValueError for another platform, and for a cfg that cannot be used.
    """
    result: Tensor | tuple[Tensor, Tensor] = _recurrent(
        query, key, value, g, g_gamma, gk, gv, initial_state, cu_seqlens,
        softmax_scale=softmax_scale, reverse=reverse, return_state=return_state, platform=platform, cfg=cfg,
    )  # fmt: skip
    return result


def gla_attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, g: ArrayLike | None = None, g_gamma: ArrayLike | None = None,
    initial_state: ArrayLike | None = None, cu_seqlens: ArrayLike | None = None, /, *,
    softmax_scale: float | None = None, reverse: bool = False, return_state: bool = False,
    platform: str | None = None, cfg: AttentionConfig | dict[str, Any] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """glade.recurrent_gla, which describes the arguments and errors: the output, and with return_state (output, final state).

    `platform` and `cfg` are those of recurrent_attention.
    """
    result: Tensor | tuple[Tensor, Tensor] = _gla(
        query, key, value, g, g_gamma, initial_state, cu_seqlens,
        softmax_scale=softmax_scale, reverse=reverse, return_state=return_state, platform=platform, cfg=cfg,
    )  # fmt: skip
    return result

"""The gated recurrence under ejkernel's operation names, whose arguments they take."""

from glade._glade import recurrent, recurrent_gla

_PLATFORMS = (None, "auto", "cpu", "cuda", "cute", "pallas", "tilelang", "triton", "xla")


def _finish(results, return_state):
    return results if return_state else results[0]


def _check_platform(function, platform):
    if platform not in _PLATFORMS:
        raise ValueError(f"{function}: platform is {platform!r}, expected one of {_PLATFORMS}")


def recurrent_attention(
    query, key, value, g=None, g_gamma=None, gk=None, gv=None, initial_state=None, cu_seqlens=None, /, *,
    softmax_scale=None, reverse=False, return_state=False, platform=None, cfg=None,
):  # fmt: skip
    """glade.recurrent, which describes the arguments and errors: the output, and with return_state (output, final state).

    `platform` and `cfg` are taken for compatibility with ejkernel and change nothing: the tensors' device decides.
    ValueError for a platform that ejkernel does not know.
    """
    _check_platform("recurrent_attention", platform)
    results = recurrent(query, key, value, g, g_gamma, gk, gv, softmax_scale, initial_state, reverse, cu_seqlens)
    return _finish(results, return_state)


def gla_attention(
    query, key, value, g=None, g_gamma=None, initial_state=None, cu_seqlens=None, /, *,
    softmax_scale=None, reverse=False, return_state=False, platform=None, cfg=None,
):  # fmt: skip
    """glade.recurrent_gla, which describes the arguments and errors: the output, and with return_state (output, final state).

    `platform` and `cfg` are taken for compatibility with ejkernel and change nothing: the tensors' device decides.
    ValueError for a platform that ejkernel does not know.
    """
    _check_platform("gla_attention", platform)
    results = recurrent_gla(query, key, value, g, g_gamma, softmax_scale, initial_state, reverse, cu_seqlens)
    return _finish(results, return_state)

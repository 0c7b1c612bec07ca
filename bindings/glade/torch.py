"""glade's kernels for PyTorch models: the same functions, on torch tensors, differentiable there.

    from glade.torch import recurrent

    output, final_state = recurrent(query, key, value, gk=gates)

Memory is shared through DLPack, nothing is copied, and work on CUDA is ordered between both libraries' streams. A
result can be differentiated once: a second backward through it, or a backward through a backward, is an error.
"""

import functools

import glade
import torch
from torch.autograd.function import once_differentiable

__all__ = [
    "cross_entropy",
    "gated_rms_norm",
    "gla_attention",
    "layer_norm",
    "lightning_attn",
    "recurrent",
    "recurrent_attention",
    "recurrent_gla",
    "rms_norm",
    "short_convolution",
    "swiglu",
]


def _to_glade(x):
    return glade.from_dlpack(x.detach())


class _Call(torch.autograd.Function):
    """A glade function of tensors as one node of PyTorch's tape, which keeps glade's tape of it."""

    @staticmethod
    def forward(ctx, function, *tensors):
        inputs = [_to_glade(x) for x in tensors]
        wanted = [x for x, needs_grad in zip(inputs, ctx.needs_input_grad[1:]) if needs_grad]
        for x in wanted:
            x.requires_grad = True
        with glade.enable_grad():
            results = function(*inputs)
        outputs = results if isinstance(results, tuple) else (results,)
        if wanted:
            ctx.tape = (outputs, wanted)
            ctx.save_for_backward(*tensors)  # so that PyTorch notices changes in place
        return tuple(torch.from_dlpack(y.detach()) for y in outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        ctx.saved_tensors  # noqa: B018: raises where one was changed in place
        if ctx.tape is None:
            raise RuntimeError("a result of glade.torch can be differentiated only once")
        (outputs, wanted), ctx.tape = ctx.tape, None
        found = iter(glade.autograd.grad(list(outputs), wanted, [_to_glade(g.contiguous()) for g in gradients], allow_unused=True))
        results = (next(found) if needs_grad else None for needs_grad in ctx.needs_input_grad[1:])
        return None, *(None if g is None else torch.from_dlpack(g) for g in results)


def _for_torch(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        is_tensor = [isinstance(a, torch.Tensor) for a in (*args, *kwargs.values())]

        def run(*tensors):
            rest = iter(tensors)
            values = [next(rest) if t else a for t, a in zip(is_tensor, (*args, *kwargs.values()))]
            return function(*values[: len(args)], **dict(zip(kwargs, values[len(args) :])))

        results = _Call.apply(run, *(a for t, a in zip(is_tensor, (*args, *kwargs.values())) if t))
        return results if len(results) > 1 else results[0]

    return call


cross_entropy = _for_torch(glade.cross_entropy)
gated_rms_norm = _for_torch(glade.gated_rms_norm)
gla_attention = _for_torch(glade.gla_attention)
layer_norm = _for_torch(glade.layer_norm)
lightning_attn = _for_torch(glade.lightning_attn)
recurrent = _for_torch(glade.recurrent)
recurrent_attention = _for_torch(glade.recurrent_attention)
recurrent_gla = _for_torch(glade.recurrent_gla)
rms_norm = _for_torch(glade.rms_norm)
short_convolution = _for_torch(glade.short_convolution)
swiglu = _for_torch(glade.swiglu)

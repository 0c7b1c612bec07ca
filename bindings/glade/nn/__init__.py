"""Modules: layers, containers, initializers, models.

>>> import glade
>>> from glade import nn
>>> class Classifier(nn.Module):
...     def __init__(self):
...         super().__init__()
...         self.hidden = nn.Linear(2, 16)
...         self.output = nn.Linear(16, 3)
...         self.scale = nn.Parameter(glade.ones(3))
...     def forward(self, x):
...         return self.output(self.hidden(x).tanh()) * self.scale
>>> model = Classifier()
>>> [name for name, _ in model.named_parameters()]
['scale', 'hidden.weight', 'hidden.bias', 'output.weight', 'output.bias']
>>> model(glade.zeros(5, 2)).shape
(5, 3)
"""

import typing as _typing
from typing import Any

from glade._glade import Tensor as _Tensor, as_tensor as _as_tensor
from glade._glade._nn import (
    GELU,
    AttentionState,
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    Dropout,
    Embedding,
    Flatten,
    GatedLinearAttention,
    GatedMLP,
    Identity,
    KLDivLoss,
    L1Loss,
    LayerNorm,
    LightningAttention,
    Linear,
    LinearAttention,
    Loss,
    Module,
    MSELoss,
    NLLLoss,
    ReLU,
    RMSNorm,
    ShortConvolution,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
    UnaryModule,
)
from glade._missing import for_module as _for_module
from glade.nn import functional, init, models
from glade.nn._containers import ModuleDict, ModuleList, ParameterList, Sequential

__all__ = [
    "AttentionState", "BCELoss", "BCEWithLogitsLoss", "CrossEntropyLoss", "Dropout", "Embedding", "Flatten", "GELU", "GatedLinearAttention", "GatedMLP",
    "Identity", "KLDivLoss", "L1Loss", "LayerNorm", "LightningAttention", "Linear", "LinearAttention", "Loss", "MSELoss", "Module", "ModuleDict", "ModuleList",
    "NLLLoss", "Parameter", "ParameterList", "RMSNorm", "ReLU", "Sequential", "ShortConvolution", "SiLU", "Sigmoid", "Softmax", "Softplus", "Tanh",
    "UnaryModule", "functional", "init", "models",
]  # fmt: skip


if not _typing.TYPE_CHECKING:  # type checkers know which names there are
    __getattr__ = _for_module("glade.nn")


class _ParameterType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Tensor) and instance.requires_grad and instance.is_leaf


if _typing.TYPE_CHECKING:

    class Parameter(_Tensor):
        def __init__(self, data: Any, requires_grad: bool = True) -> None: ...
else:

    class Parameter(metaclass=_ParameterType):
        """A tensor over `data` (anything glade.as_tensor takes) that a module it is set on takes for a parameter.

        What it makes is a Tensor; isinstance(x, nn.Parameter) asks whether x requires a gradient and is no result of operations.
        DTypeError for data that are not floating-point. ValueError for requires_grad=False: a module would take that for any tensor;
        set requires_grad_(False) once the parameter is an attribute.
        """

        def __new__(cls, data, requires_grad=True):
            if not requires_grad:
                raise ValueError("Parameter: requires_grad is False: set the parameter on a module first, then call requires_grad_(False)")
            return _as_tensor(data).detach().requires_grad_()

"""Optimizers, learning-rate schedules, gradient clipping.

>>> import glade
>>> from glade import nn, optim
>>> model = nn.Linear(2, 1)
>>> optimizer = optim.AdamW(model.named_parameters(), lr=1e-2, weight_decay=0.1)
>>> scheduler = optim.LRScheduler(optimizer, optim.warmup_cosine_lr(warmup=10, total=100))
>>> model(glade.ones(4, 2)).square().mean().backward()
>>> norm = optim.clip_grad_norm_(model.parameters(), 1.0)
>>> optimizer.step()
>>> optimizer.zero_grad()
>>> scheduler.step()
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING as _TYPE_CHECKING, Any

from glade._glade import Tensor
from glade._glade._optim import (
    SGD,
    Adam,
    AdamW,
    LossScaler,
    Optimizer,
    ParameterGroup,
    clip_grad_norm_,
    constant_lr,
    cosine_lr,
    one_cycle_lr,
    step_lr,
    warmup_cosine_lr,
    warmup_stable_decay_lr,
)

from glade._missing import for_module as _for_module
from glade.optim import lr_scheduler
from glade.optim.lr_scheduler import LRScheduler

if not _TYPE_CHECKING:  # type checkers know which names there are
    __getattr__ = _for_module("glade.optim")


def decay_matrices(parameters: Iterable[Tensor | tuple[str, Tensor]], weight_decay: float = 0.01) -> list[dict[str, Any]]:
    """Two groups for an optimizer: matrices (two dimensions or more), which decay, and after them the biases and the weights of norms,
    which do not. `parameters` are a module's named_parameters() or tensors."""
    parameters = list(parameters)
    matrices = [p for p in parameters if (p[1] if isinstance(p, tuple) else p).ndim >= 2]
    rest = [p for p in parameters if (p[1] if isinstance(p, tuple) else p).ndim < 2]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]


__all__ = [
    "SGD", "Adam", "AdamW", "LossScaler", "LRScheduler", "Optimizer", "ParameterGroup", "clip_grad_norm_", "constant_lr", "cosine_lr",
    "decay_matrices", "lr_scheduler", "one_cycle_lr", "step_lr", "warmup_cosine_lr", "warmup_stable_decay_lr",
]  # fmt: skip

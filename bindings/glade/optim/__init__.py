"""Optimisers, learning-rate schedules, gradient clipping.

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

from glade._glade._optim import (
    SGD,
    Adam,
    AdamW,
    LossScaler,
    LRScheduler,
    Optimizer,
    ParameterGroup,
    clip_grad_norm_,
    constant_lr,
    cosine_lr,
    one_cycle_lr,
    step_lr,
    warmup_cosine_lr,
)

from glade.optim import lr_scheduler

__all__ = [
    "SGD", "Adam", "AdamW", "LossScaler", "LRScheduler", "Optimizer", "ParameterGroup", "clip_grad_norm_", "constant_lr", "cosine_lr", "lr_scheduler",
    "one_cycle_lr", "step_lr", "warmup_cosine_lr",
]  # fmt: skip

"""Learning-rate schedules under PyTorch's names. Each is an LRScheduler with one of optim's schedules, which glade.save keeps.

>>> from glade import nn, optim
>>> optimizer = optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
>>> scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
>>> rates = []
>>> for _ in range(5):
...     rates.append(optimizer.lr)
...     scheduler.step()
>>> rates
[1.0, 1.0, 0.5, 0.5, 0.25]
"""

from collections.abc import Callable
from typing import TYPE_CHECKING as _TYPE_CHECKING

from glade._glade import ValueError as _ValueError
from glade._glade._optim import LRScheduler as _LRScheduler, Optimizer, cosine_lr, one_cycle_lr, step_lr
from glade._held import held_by as _held_by
from glade._missing import for_module as _for_module

__all__ = ["CosineAnnealingLR", "LRScheduler", "LambdaLR", "OneCycleLR", "StepLR"]


if not _TYPE_CHECKING:  # type checkers know which names there are
    __getattr__ = _for_module("glade.optim.lr_scheduler")


class LRScheduler(_LRScheduler):
    """Sets an optimizer's learning rates to their initial ones times schedule(step): at once for step 0, and after every optimizer step
    by step(). A schedule is any function from the step, counted from 0, to a factor. ValueError for a factor that is negative or not
    finite."""

    def __init__(self, optimizer: Optimizer, schedule: Callable[[int], float]) -> None:
        super().__init__(optimizer, _held_by(self, schedule))


class LambdaLR(LRScheduler):
    """Multiplies the initial learning rates by lr_lambda(step)."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float]) -> None:
        super().__init__(optimizer, lr_lambda)


class StepLR(LRScheduler):
    """Multiplies the learning rates by gamma every step_size steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        super().__init__(optimizer, step_lr(step_size, gamma))


class CosineAnnealingLR(LRScheduler):
    """From the initial learning rate down to eta_min along half a cosine over T_max steps, back over the next T_max, and so on.

    ValueError where eta_min is not 0 and the groups differ in their learning rates: one factor serves all groups.
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
        rates = {group.lr for group in optimizer.param_groups}
        if eta_min != 0 and len(rates) > 1:
            raise _ValueError(f"CosineAnnealingLR: eta_min is {eta_min}, expected 0 for groups with several learning rates")
        super().__init__(optimizer, cosine_lr(T_max, eta_min / rates.pop() if eta_min != 0 else 0.0))


class OneCycleLR(LRScheduler):
    """Up from max_lr / div_factor to max_lr over the share pct_start of total_steps, then down to that over final_div_factor.

    epochs * steps_per_epoch may stand for total_steps (ValueError without either). Momentum stays as it is (PyTorch's cycle_momentum=False).
    """

    def __init__(
        self, optimizer: Optimizer, max_lr: float, total_steps: int | None = None, epochs: int | None = None,
        steps_per_epoch: int | None = None, pct_start: float = 0.3, *, cycle_momentum: bool, div_factor: float = 25.0,
        final_div_factor: float = 1e4,
    ) -> None:  # fmt: skip
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise _ValueError("OneCycleLR: total_steps is missing: give it, or epochs and steps_per_epoch")
            total_steps = epochs * steps_per_epoch
        if cycle_momentum:
            raise _ValueError("OneCycleLR: cycle_momentum is True, expected False: momentum stays as it is")
        schedule = one_cycle_lr(total_steps, pct_start, 1 / div_factor, 1 / (div_factor * final_div_factor))
        optimizer.lr = max_lr
        super().__init__(optimizer, schedule)

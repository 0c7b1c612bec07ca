"""A program with annotations, for a type checker: test_typing.py runs mypy on it, strictly, and the program itself."""

from typing import Any

import glade
import numpy as np
from glade import Tensor, nn, optim
from glade.typing import ArrayLike


class Scale(glade.autograd.Function):
    @staticmethod
    def forward(ctx: glade.autograd.Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: glade.autograd.Context, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2


class Model(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, hidden), glade.tanh, nn.Linear(hidden, 1))
        self.scale = nn.Parameter(glade.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y * self.scale


def mean(x: ArrayLike) -> float:
    value = glade.as_tensor(x).mean().item()
    assert isinstance(value, float)
    return value


def main() -> None:
    x = glade.randn(4, 2, dtype="float32", device="cpu")
    model = Model(8).to(glade.float32).train()
    optimizer = optim.AdamW(model.named_parameters(), lr=1e-2)
    scheduler = optim.LRScheduler(optimizer, optim.warmup_cosine_lr(1, 10))
    for _ in range(3):
        loss: Tensor = glade.mse_loss(model(x), x[:, :1])
        loss.backward()
        norm: Tensor = optim.clip_grad_norm_(model.parameters(), 1.0)
        assert norm.item() >= 0
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    with glade.no_grad():
        total: float = mean(np.ones(3)) + mean(x)
    assert isinstance(total, float)
    state: dict[str, Tensor] = model.state_dict()
    model.load_state_dict(state)
    query = glade.ones(1, 3, 1, 2)
    output, final = glade.recurrent(query, query, query, reverse=True)
    shape: tuple[int, ...] = output.shape
    y = (1 + -x / 2) @ x.T > 0
    config: dict[str, Any] = nn.models.GLAForCausalLM(hidden_size=32, num_heads=2).config
    assert len(shape) == 4 and y.dtype is glade.bool and config["hidden_size"] == 32 and final.ndim == 4
    assert Scale.apply(x).shape == x.shape


main()

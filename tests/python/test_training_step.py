"""What training steps are made of: fused operations, loss scaling, graphed functions."""

import glade
import numpy as np
import pytest
from glade import nn, optim
from glade.cuda import GraphedFunction


def random(*shape):
    return glade.tensor(np.random.default_rng(sum(shape)).standard_normal(shape), requires_grad=True)


def test_fused_operations_equal_the_composition():
    x, residual, weight = random(3, 8), random(3, 8), random(8)
    y, total = glade.add_rms_norm(x, residual, weight, eps=0.1)
    assert total.tolist() == (x + residual).tolist()
    assert y.tolist() == glade.rms_norm(x + residual, weight, 0.1).tolist()
    head, bias = random(5, 8), random(5)
    first, second = glade.linears(x, [head, head], [None, bias])
    assert first.tolist() == glade.linear(x, head).tolist()
    assert second.tolist() == glade.linear(x, head, bias).tolist()
    targets = glade.tensor([1, -100, 4])
    loss = glade.linear_cross_entropy(x, head, targets, label_smoothing=0.1)
    assert loss.item() == pytest.approx(glade.cross_entropy(glade.linear(x, head), targets, label_smoothing=0.1).item())
    assert glade.normalized_logsigmoid(x, 16).tolist() == (x.logsigmoid() / 16).tolist()


def test_a_step_clips_and_unscales():
    def weights_after(scaled):
        glade.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = optim.AdamW(model.named_parameters(), lr=0.1)
        scaler = optim.LossScaler("cpu", initial=1024)
        loss = model(glade.ones(3, 4)).square().mean()
        (scaler.scale(loss) if scaled else loss).backward()
        norm = optimizer.step(max_norm=0.5, scaler=scaler if scaled else None)
        return norm.item(), model.weight.tolist()

    assert weights_after(True) == weights_after(False)
    assert optim.AdamW(nn.Linear(2, 2).named_parameters()).step() is None


def test_a_step_that_overflows_is_skipped():
    weight = glade.ones(2).detach()
    weight.requires_grad = True
    optimizer, scaler = optim.AdamW([weight]), optim.LossScaler("cpu", initial=2.0**100)
    scaler.scale((weight * 1e30).sum()).backward()
    optimizer.step(scaler=scaler)
    assert weight.tolist() == [1, 1] and scaler.value.item() == 2.0**99
    with pytest.raises(ValueError, match="backoff"):
        optim.LossScaler("cpu", backoff=2)


def test_graphed_functions_are_called_on_the_cpu():
    double = GraphedFunction("cpu", lambda tensors: [tensors[0] * 2])
    assert [double([glade.ones(n)])[0].tolist() for n in (1, 2, 2)] == [[2], [2, 2], [2, 2]]
    assert not double.is_replaying

"""Adam, SGD with Nesterov's momentum, parameter groups as PyTorch reads and writes them, schedules."""

import copy
import math

import numpy as np
import pytest
from conftest import to_numpy

import glade
from glade import nn, optim
from glade.optim import lr_scheduler

try:
    import torch
except ImportError:
    torch = None


def steps(optimizer, x, gradients, **options):
    for gradient in gradients:
        x.grad = glade.tensor(gradient, device=x.device, dtype=x.dtype)
        optimizer.step(**options)
    return to_numpy(x)


def adam_in_numpy(p, gradients, lr, betas, eps, decay):
    m = v = 0
    for t, g in enumerate(gradients, 1):
        g = g + decay * p
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
        p = p - lr * (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
    return p


def sgd_in_numpy(p, gradients, lr, momentum, decay, nesterov):
    buffer = 0
    for g in gradients:
        g = g + decay * p
        buffer = momentum * buffer + g
        p = p - lr * (g + momentum * buffer if nesterov else buffer)
    return p


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_adam(rng, device, decay):
    values, gradients = rng.normal(size=(3, 4)), rng.normal(size=(5, 3, 4))
    x = nn.Parameter(glade.tensor(values, device=device))
    optimizer = optim.Adam([x], 0.1, (0.8, 0.9), 1e-6, decay)
    expected = adam_in_numpy(values, gradients, 0.1, (0.8, 0.9), 1e-6, decay)
    np.testing.assert_allclose(steps(optimizer, x, gradients), expected, rtol=1e-11)
    if decay == 0:
        y = nn.Parameter(glade.tensor(values, device=device))
        adamw = optim.AdamW([y], lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0)
        assert (steps(adamw, y, gradients) == to_numpy(x)).all()
    if torch is not None:
        t = torch.tensor(values, requires_grad=True)
        theirs = torch.optim.Adam([t], lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=decay)
        for gradient in gradients:
            t.grad = torch.tensor(gradient)
            theirs.step()
        np.testing.assert_allclose(to_numpy(x), t.detach().numpy(), rtol=1e-10)


def test_adam_clips_before_it_decays(rng, device):
    values, gradient = rng.normal(size=4), np.array([3.0, 0, 4, 0])
    x = nn.Parameter(glade.tensor(values, device=device))
    found = steps(optim.Adam([x], lr=0.1, weight_decay=0.5), x, [gradient], max_norm=1.0)
    expected = adam_in_numpy(values, [gradient / (5 + 1e-6)], 0.1, (0.9, 0.999), 1e-8, 0.5)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_adam_errors_name_it():
    with pytest.raises(glade.ValueError, match="Adam: beta1 is 2"):
        optim.Adam([nn.Parameter(glade.ones(1))], betas=(2, 0.9))
    with pytest.raises(glade.ValueError, match="Adam: no parameters"):
        optim.Adam([])


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_sgd(rng, device, nesterov, decay):
    values, gradients = rng.normal(size=(3, 4)), rng.normal(size=(5, 3, 4))
    x = nn.Parameter(glade.tensor(values, device=device))
    optimizer = optim.SGD([x], lr=0.1, momentum=0.9, weight_decay=decay, nesterov=nesterov)
    np.testing.assert_allclose(steps(optimizer, x, gradients), sgd_in_numpy(values, gradients, 0.1, 0.9, decay, nesterov), rtol=1e-12)
    with pytest.raises(glade.ValueError, match="nesterov needs a momentum"):
        optim.SGD([x], nesterov=True)


def test_groups_are_dicts_too():
    model = nn.Linear(2, 3)
    optimizer = optim.AdamW([{"params": [model.weight], "lr": 0.5}, {"params": [("bias", model.bias)], "weight_decay": 0.0}], lr=0.1)
    for group in optimizer.param_groups:
        group["lr"] *= 2
    assert [group["lr"] for group in optimizer.param_groups] == [1.0, 0.2] == [group.lr for group in optimizer.param_groups]
    assert optimizer.param_groups[0]["params"][0].is_same(model.weight) and optimizer.param_groups[1]["param_names"] == ["bias"]
    assert dict(optimizer.param_groups[1])["weight_decay"] == 0
    for call in (lambda: optimizer.param_groups[0]["momentum"], lambda: optimizer.param_groups[0].__setitem__("params", [])):
        with pytest.raises(KeyError):
            call()
    assert repr(optimizer) == (
        "AdamW(\n  ParameterGroup(lr=1.0, weight_decay=0.01, 1 tensors of 6 parameters)\n"
        "  ParameterGroup(lr=0.2, weight_decay=0.0, 1 tensors of 3 parameters)\n)"
    )


def test_zero_grad():
    x = nn.Parameter(glade.ones(2))
    optimizer = optim.SGD([x])
    (x * x).sum().backward()
    gradient = x.grad
    optimizer.zero_grad(set_to_none=False)
    assert x.grad.is_same(gradient) and gradient.tolist() == [0, 0]
    optimizer.zero_grad()
    assert x.grad is None


# ---- schedules -------------------------------------------------------------------------------------------------------


def rates(make, count, lr=1.0):
    optimizer = optim.SGD([nn.Parameter(glade.ones(1))], lr=lr)
    scheduler = make(optimizer)
    result = []
    for _ in range(count):
        result.append(optimizer.lr)
        scheduler.step()
    return result


def one_cycle(step, total, max_lr, pct=0.3, div=25.0, final=1e4):
    peak, last = pct * total - 1, total - 1
    lowest = max_lr / div
    if step <= peak:
        return max_lr + (lowest - max_lr) / 2 * (1 + math.cos(math.pi * step / peak))
    return lowest / final + (max_lr - lowest / final) / 2 * (1 + math.cos(math.pi * (step - peak) / (last - peak)))


def test_schedules():
    assert rates(lambda o: lr_scheduler.StepLR(o, 2, gamma=0.5), 5) == [1, 1, 0.5, 0.5, 0.25]
    expected = [0.2 + 0.8 / 2 * (1 + math.cos(math.pi * t / 4)) for t in range(10)]
    assert rates(lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=4, eta_min=0.2), 10) == pytest.approx(expected)
    assert rates(lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (step + 1)), 3) == [1, 0.5, pytest.approx(1 / 3)]
    for length in ({"total_steps": 20}, {"epochs": 4, "steps_per_epoch": 5}):
        found = rates(lambda o, length=length: lr_scheduler.OneCycleLR(o, max_lr=2.0, **length, cycle_momentum=False), 20, lr=0.1)
        assert found == pytest.approx([one_cycle(t, 20, 2.0) for t in range(20)])
    wsd = optim.warmup_stable_decay_lr(warmup=2, decay=4, total=10, final_factor=0.5)
    assert [wsd(t) for t in range(12)] == [0.5, 1, 1, 1, 1, 1, 1, 0.875, 0.75, 0.625, 0.5, 0.5]
    assert optim.cosine_lr(10)(5) == pytest.approx(0.5) and optim.step_lr(3)(7) == pytest.approx(0.01) and optim.one_cycle_lr(10)(99) == pytest.approx(4e-6)


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("StepLR", {"step_size": 3, "gamma": 0.3}), ("CosineAnnealingLR", {"T_max": 7, "eta_min": 0.01}),
        ("OneCycleLR", {"max_lr": 0.5, "total_steps": 15, "cycle_momentum": False}),
    ],
)  # fmt: skip
def test_schedules_against_pytorch(name, arguments):
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    scheduler = getattr(torch.optim.lr_scheduler, name)(optimizer, **arguments)
    expected = []
    for i in range(15):
        expected.append(scheduler.get_last_lr()[0])
        optimizer.step()
        if i < 14:
            scheduler.step()
    assert rates(lambda o: getattr(lr_scheduler, name)(o, **arguments), 15, lr=0.1) == pytest.approx(expected)


def test_schedule_errors():
    parameters = [{"params": [nn.Parameter(glade.ones(1))], "lr": lr} for lr in (0.1, 0.2)]
    optimizer = optim.SGD(parameters)
    with pytest.raises(glade.ValueError, match="eta_min is 0.01, expected 0 for groups"):
        lr_scheduler.CosineAnnealingLR(optimizer, 5, eta_min=0.01)
    with pytest.raises(glade.ValueError, match="cycle_momentum is True"):
        lr_scheduler.OneCycleLR(optimizer, 0.1, 5, cycle_momentum=True)
    with pytest.raises(glade.ValueError, match="total_steps is missing: give it, or epochs and steps_per_epoch"):
        lr_scheduler.OneCycleLR(optimizer, 0.1, epochs=3, cycle_momentum=False)
    with pytest.raises(AttributeError, match=r"has no 'ExponentialLR': write LambdaLR\(optimizer, lambda step: gamma\*\*step\)"):
        lr_scheduler.ExponentialLR
    for call, words in [
        (lambda: optim.step_lr(0), "step_size is 0"), (lambda: optim.cosine_lr(0), "period is 0"), (lambda: optim.one_cycle_lr(5, 2.0), "warmup is 2"),
        (lambda: optim.cosine_lr(5, -1), "final_factor is -1"), (lambda: optim.warmup_stable_decay_lr(3, 8, 10), "decay is 8"),
    ]:  # fmt: skip
        with pytest.raises(glade.ValueError, match=words):
            call()
    scheduler = lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    scheduler.step()
    assert scheduler.get_last_lr() == [0.05, 0.1]
    state = copy.copy(scheduler.state_dict())
    again = lr_scheduler.StepLR(optim.SGD([{"params": [nn.Parameter(glade.ones(1))], "lr": lr} for lr in (0.1, 0.2)]), 1, gamma=0.5)
    again.load_state_dict(state)
    assert again.get_last_lr() == [0.05, 0.1]


def test_one_tensor_is_clipped_but_no_list_of_parameters():
    p = nn.Parameter(glade.ones(3))
    p.grad = glade.full((3,), 10.0)
    assert optim.clip_grad_norm_(p, 1.0).item() == pytest.approx(300**0.5)
    assert p.grad.norm().item() == pytest.approx(1)
    p.grad = glade.full((3,), 10.0)
    optim.clip_grad_norm_((x for x in [p]), 1.0)
    assert p.grad.norm().item() == pytest.approx(1)
    with pytest.raises(TypeError, match="params is a Tensor"):
        optim.SGD(p)


def test_loss_scale_stays_finite():
    p = nn.Parameter(glade.ones(1))
    scaler, optimizer = optim.LossScaler("cpu", growth_interval=1, initial=2.0**120), optim.AdamW([p])
    for _ in range(20):
        p.grad = glade.ones(1)
        optimizer.step(scaler=scaler)
    assert scaler.value.item() == 2.0**127


def test_sgd_without_momentum_forgets_gradients():
    p = nn.Parameter(glade.ones(1))
    optimizer = optim.SGD([p], lr=0.1)
    p.grad = glade.full((1,), float("inf"))
    optimizer.step()
    with glade.no_grad():
        p.copy_(glade.ones(1))
    p.grad = glade.ones(1)
    optimizer.step()
    assert p.item() == pytest.approx(0.9)


def test_groups_read_like_dicts():
    group = optim.SGD([nn.Parameter(glade.ones(1))], lr=0.1).param_groups[0]
    assert "lr" in group and 0 not in group and list(group) == list(group.keys()) and len(group) == 4
    assert group.get("momentum", 3) == 3 and group.get("lr") == dict(group.items())["lr"] == 0.1

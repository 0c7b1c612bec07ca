"""Training for long needs no more memory than training for a while, and leaves no objects behind.

Each test runs in a process of its own: what other tests have left to free, or threads of other libraries do, is not counted.
"""

import concurrent.futures
import gc
import multiprocessing
import resource
import weakref

import pytest

import glade
from glade import nn, optim


class Cube(glade.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3 * ctx.saved_tensors[0] ** 2


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def in_new_process(function):
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function).result()


def bytes_and_objects_that_10000_steps_leave():
    model = nn.Sequential(nn.Linear(4, 8), Cube.apply, nn.RMSNorm(8), nn.Linear(8, 1))
    optimizer = optim.AdamW(model.named_parameters())
    model[0].weight.register_hook(lambda gradient: gradient * 0.5)
    model[2].weight.register_post_accumulate_grad_hook(lambda leaf: leaf.grad)
    x = glade.randn(3, 4)

    def train(steps):
        for _ in range(steps):
            loss = model(x)[:, 0].square().mean()
            loss.backward()
            optim.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            glade.from_dlpack(x.numpy())

    train(1000)
    gc.collect()
    objects, memory = len(gc.get_objects()), resident_bytes()
    gc.disable()  # what only the collector would find is a leak here
    try:
        train(10000)
    finally:
        gc.enable()
    return resident_bytes() - memory, len(gc.get_objects()) - objects


def bytes_that_5000_errors_leave():
    x = glade.ones(2)

    def fail(times):
        for _ in range(times):
            for call in (lambda: x + glade.ones(3), lambda: x[5], lambda: x.reshape(7), lambda: x + "text", lambda: x.sum(dim="a")):
                try:
                    call()
                except (ValueError, IndexError, TypeError):
                    pass

    fail(200)
    memory = resident_bytes()
    fail(5000)
    return resident_bytes() - memory


def test_constant_memory_over_10000_steps():
    left, objects = in_new_process(bytes_and_objects_that_10000_steps_leave)
    assert objects < 100
    assert left < 2**20


def test_errors_leak_nothing():
    assert in_new_process(bytes_that_5000_errors_leave) < 2**20


class Owner:
    """Has an object that calls a function of its own, as a class for training may."""

    def __init__(self, make):
        self.part = make(self)

    def factor(self, step):
        return 1.0

    def work(self, tensors):
        return tensors


@pytest.mark.parametrize("make", [
    lambda owner: optim.LRScheduler(optim.SGD([nn.Parameter(glade.ones(1))]), owner.factor),
    lambda owner: optim.lr_scheduler.LambdaLR(optim.SGD([nn.Parameter(glade.ones(1))]), lambda step: owner.factor(step)),
    lambda owner: glade.cuda.GraphedFunction("cpu", owner.work),
], ids=["LRScheduler", "LambdaLR", "GraphedFunction"])  # fmt: skip
def test_functions_that_refer_to_their_owner_are_freed(make):
    owner = Owner(make)
    if isinstance(owner.part, optim.LRScheduler):
        owner.part.step()
    else:
        assert owner.part([glade.ones(1)])[0].item() == 1
    known = weakref.ref(owner)
    del owner
    gc.collect()
    assert known() is None

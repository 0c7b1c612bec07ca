"""Gradients through the bindings: backward, grad, modes, hooks, derivatives in Python, gradcheck."""

import gc
import threading
import weakref

import pytest

import glade
from glade.autograd import Function, grad, gradcheck, gradgradcheck


def test_backward_accumulates():
    x = glade.tensor([1.0, 2.0], requires_grad=True)
    for _ in range(2):
        (x * x).sum().backward()
    assert x.grad.tolist() == [4.0, 8.0]
    x.grad = None
    assert x.grad is None
    (x * x).backward(glade.tensor([1.0, 10.0]))
    assert x.grad.tolist() == [2.0, 40.0]
    x.grad = glade.ones(2)
    assert x.grad.tolist() == [1.0, 1.0]


def test_backward_twice_needs_retain_graph():
    x = glade.tensor(3.0, requires_grad=True)
    y = x * x
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.item() == 12
    with pytest.raises(glade.AutogradError, match="retain_graph"):
        y.backward()


def test_grad_and_double_backward():
    x = glade.tensor(2.0, requires_grad=True)
    (dx,) = grad(x * x * x, x, create_graph=True)
    (ddx,) = grad(dx, [x])
    assert dx.item() == 12 and ddx.item() == 12 and x.grad is None
    y = glade.tensor(1.0, requires_grad=True)
    with pytest.raises(glade.AutogradError):
        grad(x * 2, [y])
    assert grad(x * 2, [x, y], allow_unused=True)[1] is None


def test_modes():
    x = glade.ones(1, requires_grad=True)
    with glade.no_grad():
        assert not glade.is_grad_enabled() and not (x * 2).requires_grad
        with glade.enable_grad():
            assert (x * 2).requires_grad
        assert not glade.is_grad_enabled()
    assert glade.is_grad_enabled()

    @glade.no_grad()
    def double(x, depth):
        assert not glade.is_grad_enabled()
        return double(x, depth - 1) if depth else x * 2

    assert not double(x, 2).requires_grad and glade.is_grad_enabled()
    with pytest.raises(KeyError), glade.no_grad():
        raise KeyError
    assert glade.is_grad_enabled()


def test_detach_and_requires_grad():
    x = glade.ones(2, requires_grad=True)
    y = (x * 2).detach()
    assert not y.requires_grad and y.is_leaf and not (x * 2).is_leaf
    assert y.requires_grad_().is_same(y) and y.requires_grad
    with pytest.raises(glade.DTypeError):
        glade.tensor([1]).requires_grad = True
    with pytest.raises(glade.AutogradError):
        (x * 2).requires_grad = False
    with pytest.raises(TypeError):
        x.grad = 3
    with pytest.raises(glade.ShapeError):
        x.grad = glade.ones(3)


def test_hooks():
    x = glade.ones(2, requires_grad=True)
    y = x * 3
    seen = []
    y.register_hook(lambda g: seen.append(g.tolist()))
    key = x.register_hook(lambda g: g * 10)
    y.sum().backward(retain_graph=True)
    assert seen == [[1.0, 1.0]] and x.grad.tolist() == [30.0, 30.0]
    x.remove_hook(key)
    x.grad = None
    y.sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_an_error_in_a_hook_comes_out_as_it_is():
    x = glade.ones(1, requires_grad=True)
    y = x * 2

    def hook(gradient):
        raise KeyError("from the hook")

    y.register_hook(hook)
    with pytest.raises(KeyError, match="from the hook"):
        y.backward()
    assert x.grad is None


def test_post_accumulate_grad_hooks():
    x, w = glade.ones(2, requires_grad=True), glade.tensor([3.0, 4.0], requires_grad=True)
    seen = []

    def step(leaf):
        seen.append((leaf.is_same(w), leaf.grad.tolist(), x.grad is None))
        leaf -= leaf.grad * 0.5
        leaf.grad = None

    key = w.register_post_accumulate_grad_hook(step)
    (x * 2 * w).sum().backward()
    assert seen == [(True, [2.0, 2.0], True)]
    assert w.tolist() == [2.0, 3.0] and w.grad is None and x.grad.tolist() == [6.0, 8.0]
    glade.autograd.grad((x * w).sum(), w)
    w.remove_hook(key)
    (x * w).sum().backward()
    assert len(seen) == 1
    with pytest.raises(glade.AutogradError, match="expected a leaf that requires a gradient"):
        (x * 2).register_post_accumulate_grad_hook(step)


def test_an_error_in_a_post_accumulate_grad_hook_comes_out_as_it_is():
    x, w = glade.ones(1, requires_grad=True), glade.ones(1, requires_grad=True)

    def hook(leaf):
        raise KeyError("from the hook")

    w.register_post_accumulate_grad_hook(hook)
    with pytest.raises(KeyError, match="from the hook"):
        (x * 2 * w).backward()
    assert w.grad.tolist() == [2.0] and x.grad is None


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 * x * x


class Exp(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * y


class Scale(Function):
    """Several arguments and results, some of them no tensors."""

    @staticmethod
    def forward(ctx, x, factor, y):
        ctx.factor = factor
        return x * factor, y + 1

    @staticmethod
    def backward(ctx, dx, dy):
        return dx * ctx.factor, None, dy


def test_function():
    x = glade.randn(3, dtype="float64", requires_grad=True)
    for function in (Cube, Exp):
        assert gradcheck(function.apply, x) and gradgradcheck(function.apply, x)
    y = glade.randn(3, dtype="float64", requires_grad=True)
    assert gradcheck(lambda x, y: Scale.apply(x, 2.5, y), [x, y])
    assert not Cube.apply(x.detach()).requires_grad
    with glade.no_grad():
        assert not Cube.apply(x).requires_grad


def test_function_with_unused_results():
    x, y = glade.ones(2, requires_grad=True), glade.ones(2, requires_grad=True)
    Scale.apply(x, 2.0, y)[0].sum().backward()
    assert x.grad.tolist() == [2.0, 2.0] and y.grad.tolist() == [0.0, 0.0]


def test_function_that_returns_its_argument():
    class Identity(Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    x = glade.ones(1, requires_grad=True)
    y = Identity.apply(x)
    assert not y.is_same(x)
    y.backward()
    assert x.grad.item() == 2


def test_function_errors():
    class Wrong(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient, gradient

    with pytest.raises(TypeError, match="expected 1 gradients"):
        Wrong.apply(glade.ones(1, requires_grad=True)).backward()

    class Failing(Wrong):
        @staticmethod
        def backward(ctx, gradient):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Failing.apply(glade.ones(1, requires_grad=True)).backward()

    class WrongShape(Wrong):
        @staticmethod
        def backward(ctx, gradient):
            return gradient[:2]

    with pytest.raises(glade.AutogradError, match=r"input 0 is float32 \[5\] on cpu, its gradient float32 \[2\]"):
        WrongShape.apply(glade.ones(5, requires_grad=True).exp()).backward(glade.ones(5))
    x = glade.ones(1, requires_grad=True)
    y = Cube.apply(x)
    with glade.no_grad():
        x += 1
    with pytest.raises(glade.AutogradError, match="changed in place"):
        y.backward()


def test_functions_leave_no_cycles():
    gc.disable()
    try:
        marker = weakref.WeakSet()

        class Marked(Exp):
            @staticmethod
            def forward(ctx, x):
                marker.add(ctx)
                return Exp.forward(ctx, x)

        x = glade.ones(2, requires_grad=True)
        y = Marked.apply(x)
        assert len(marker) == 1
        del y
        assert len(marker) == 0
    finally:
        gc.enable()


def test_gradcheck_finds_a_wrong_derivative():
    class Wrong(Cube):
        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0]

    x = glade.ones(2, dtype="float64", requires_grad=True)
    with pytest.raises(glade.AutogradError):
        gradcheck(Wrong.apply, x)


def test_threads_share_parameters():
    weight = glade.randn(64, 64, requires_grad=True)
    errors = []

    def work():
        try:
            for _ in range(50):
                x = glade.randn(8, 64)
                (x @ weight).tanh().sum().backward()
                Cube.apply(weight).sum().backward()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert weight.grad.shape == (64, 64)


def test_hooks_may_remove_themselves_and_add_others():
    for leaf in (True, False):
        x = glade.ones(3, requires_grad=True)
        y = x if leaf else x * 2
        calls = []

        def first(gradient):
            y.remove_hook(key)
            for _ in range(20):
                y.register_hook(lambda g: calls.append("new"))

        key = y.register_hook(first)
        y.register_hook(lambda g: calls.append("old"))
        (y * 3).sum().backward()
        assert calls == ["old"] and x.grad.tolist() == [3 if leaf else 6] * 3
    y = glade.ones(3, requires_grad=True) * 2
    for result in ((), [], [y, y], 3):
        key = y.register_hook(lambda g: result)
        with pytest.raises(TypeError, match="expected a tensor or None"):
            y.sum().backward(retain_graph=True)
        y.remove_hook(key)


def test_functions_may_end_their_own_node():
    class Square(glade.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            (x_saved,) = ctx.saved_tensors
            if not seen:
                seen.append(1)
                glade.autograd.grad(other, x)
            return gradient * 2 * x_saved

    seen = []
    x = glade.ones(3, requires_grad=True)
    y = Square.apply(x)
    other = y.sum()
    y.sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_gradgradcheck_leaves_recording_as_it_was():
    def fail(x):
        raise ZeroDivisionError

    with glade.no_grad():
        with pytest.raises(ZeroDivisionError):
            glade.autograd.gradgradcheck(fail, glade.ones(3, dtype="float64", requires_grad=True))
        assert not glade.is_grad_enabled()

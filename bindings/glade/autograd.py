"""The tape: gradients, when they are recorded, and derivatives written in Python."""

import contextlib
from typing import Any

from glade._glade import Tensor, zeros
from glade._glade._autograd import (
    grad,
    gradcheck,
    gradgradcheck,
    is_grad_enabled,
    record_function as _record_function,
    set_grad_enabled as _set_grad_enabled,
)

__all__ = ["Context", "Function", "enable_grad", "grad", "gradcheck", "gradgradcheck", "is_grad_enabled", "no_grad", "set_grad_enabled"]


class _GradMode(contextlib.ContextDecorator):
    _enabled: bool

    def __init__(self) -> None:
        self._previous: list[bool] = []

    def __enter__(self) -> "_GradMode":
        self._previous.append(is_grad_enabled())
        _set_grad_enabled(self._enabled)
        return self

    def __exit__(self, *exception: object) -> None:
        _set_grad_enabled(self._previous.pop())

    def _recreate_cm(self) -> "_GradMode":  # a decorated function may call itself, or run on several threads
        return type(self)()


class no_grad(_GradMode):
    """Nothing is recorded on this thread inside: `with no_grad():`, or `@no_grad()` on a function."""

    _enabled = False


class enable_grad(_GradMode):
    """Operations are recorded on this thread inside, also within no_grad: `with enable_grad():`, or `@enable_grad()`."""

    _enabled = True


class set_grad_enabled(contextlib.ContextDecorator):
    """Sets whether operations are recorded on this thread: from the call on, or inside of `with set_grad_enabled(False):`, or inside of a
    function with `@set_grad_enabled(False)`."""

    def __init__(self, mode: bool) -> None:
        self._mode, self._previous = bool(mode), is_grad_enabled()
        _set_grad_enabled(self._mode)

    def __enter__(self) -> "set_grad_enabled":
        return self

    def __exit__(self, *exception: object) -> None:
        _set_grad_enabled(self._previous)

    def __call__(self, function: Any) -> Any:
        _set_grad_enabled(self._previous)  # only inside of the function
        return super().__call__(function)

    def _recreate_cm(self) -> "set_grad_enabled":
        return type(self)(self._mode)


class Context:
    """What Function.forward hands to Function.backward: saved tensors, and any attributes set on it."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad  #: for each argument of forward, whether it is a tensor with a gradient
        self.saved_tensors: tuple[Tensor, ...] = ()  #: inside backward, what save_for_backward was given

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keeps tensors, arguments or results of forward or others, for backward. To be called once."""
        self._to_save = tensors


class Function:
    """An operation with a derivative of your own.

    Derive from it and write two static methods; call `apply`, never an instance:

    >>> import glade
    >>> class Cube(glade.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x * x * x
    ...     @staticmethod
    ...     def backward(ctx, gradient):
    ...         (x,) = ctx.saved_tensors
    ...         return gradient * 3 * x * x
    >>> x = glade.tensor(2.0, requires_grad=True)
    >>> Cube.apply(x).backward()
    >>> x.grad.item()
    12.0

    `forward` runs unrecorded and returns one tensor or a tuple; `backward` gets a gradient for each and returns one for
    each argument of forward (None for those that are no tensors, or need none).
    """

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        """Computes the result from any arguments."""
        raise NotImplementedError

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Gives the gradients of forward's arguments from those of its results."""
        raise NotImplementedError

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Runs forward and puts backward on the tape."""
        ctx = Context(tuple(isinstance(a, Tensor) and a.requires_grad for a in args))
        with no_grad():
            result = cls.forward(ctx, *args)
        saved = ctx.__dict__.pop("_to_save", ())
        if not is_grad_enabled() or not any(ctx.needs_input_grad):
            return result
        outputs = [result] if isinstance(result, Tensor) else list(result)
        zeros_like = [(y.shape, y.dtype, y.device) for y in outputs]
        are_tensors = [isinstance(a, Tensor) for a in args]

        def backward(saved_tensors: tuple[Tensor, ...], gradients: tuple[Tensor | None, ...]) -> list[Tensor | None]:
            of_results = [
                zeros(shape, dtype=dtype, device=device) if g is None else g
                for g, (shape, dtype, device) in zip(gradients, zeros_like)
            ]
            ctx.saved_tensors = saved_tensors
            try:
                given = cls.backward(ctx, *of_results)
            finally:
                ctx.saved_tensors = ()
            given = given if isinstance(given, (tuple, list)) else (given,)
            if len(given) != len(args):
                raise TypeError(f"{cls.__name__}.backward: expected {len(args)} gradients, one for each argument of forward, got {len(given)}")
            return [g for g, is_tensor in zip(given, are_tensors) if is_tensor]

        recorded = _record_function([a for a in args if isinstance(a, Tensor)], outputs, list(saved), backward)
        return recorded[0] if isinstance(result, Tensor) else tuple(recorded)

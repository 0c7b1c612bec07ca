"""Functions that objects written in C++ call. What C++ holds, Python's collector does not see: it could never free an object whose
function refers to it."""

import weakref
from typing import Any


def held_by(owner: Any, function: Any) -> Any:
    """A function for the C++ part of `owner`, which calls `function`; owner alone keeps that."""
    if not callable(function):
        return function  # an error of C++'s
    owner._function = function
    known = weakref.ref(owner)
    return lambda *arguments: known()._function(*arguments)  # type: ignore[union-attr]

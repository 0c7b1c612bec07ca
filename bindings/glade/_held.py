"""Functions that objects written in C++ call. Python's garbage collector does not see what C++ holds, so it could never free an object
whose function refers to that object."""

import weakref
from typing import Any


def held_by(owner: Any, function: Any) -> Any:
    """A function for the C++ part of `owner`, which calls `function`; owner alone keeps that."""
    if not callable(function):
        return function  # C++ raises the error
    owner._function = function
    known = weakref.ref(owner)
    return lambda *arguments: known()._function(*arguments)  # type: ignore[union-attr]

"""Initializers: fill a tensor in place, unrecorded, and return it."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from glade._glade._nn.init import (
    constant_,
    kaiming_normal_,
    kaiming_uniform_,
    normal_,
    ones_,
    trunc_normal_,
    uniform_,
    xavier_normal_,
    xavier_uniform_,
    zeros_,
)
from glade._missing import for_module as _for_module

__all__ = [
    "constant_", "kaiming_normal_", "kaiming_uniform_", "normal_", "ones_", "trunc_normal_", "uniform_", "xavier_normal_", "xavier_uniform_", "zeros_",
]  # fmt: skip

if not _TYPE_CHECKING:  # type checkers know which names there are
    __getattr__ = _for_module("glade.nn.init")

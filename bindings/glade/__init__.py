"""glade: tensors, gradients, and language models of gated linear attention.

>>> import glade
>>> x = glade.tensor([1.0, 2.0, 3.0], requires_grad=True)
>>> (x * x).sum().backward()
>>> x.grad.tolist()
[2.0, 4.0, 6.0]
"""

from math import e as e, inf as inf, nan as nan, pi as pi
from typing import TYPE_CHECKING as _TYPE_CHECKING

from glade import (
    autograd as autograd,
    cuda as cuda,
    data as data,
    distributed as distributed,
    linear_attention as linear_attention,
    nn as nn,
    optim as optim,
    profiler as profiler,
    tuning as tuning,
)
from glade._attention import gla_attention as gla_attention, recurrent_attention as recurrent_attention
from glade._glade import *
from glade._glade import __version__ as __version__
from glade._limits import finfo as finfo, iinfo as iinfo
from glade._missing import for_module as _for_module
from glade.autograd import (
    enable_grad as enable_grad,
    is_grad_enabled as is_grad_enabled,
    no_grad as no_grad,
    set_grad_enabled as set_grad_enabled,
)

if not _TYPE_CHECKING:  # type checkers know which names there are
    __getattr__ = _for_module("glade")

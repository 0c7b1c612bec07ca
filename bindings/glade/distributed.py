"""Processes that compute together: collectives with gradients, and data parallel training. docs/distributed.md is the guide.

A program that is started alone is a group of one:

>>> import glade
>>> world = glade.distributed.world()
>>> world.rank, world.size
(0, 1)
>>> model = glade.nn.Linear(2, 1)
>>> parallel = glade.distributed.DataParallel(model)
>>> loss = model(glade.ones(3, 2)).square().mean()
>>> loss.backward()
>>> parallel.wait([loss.detach()])
>>> glade.distributed.all_gather(glade.tensor([1.0, 2.0])).tolist()
[1.0, 2.0]

With `mpirun -np 4 python program.py` there are four.
"""

import importlib.util
import os
from pathlib import Path

from glade._glade._distributed import (
    DataParallel,
    ProcessGroup,
    Saver,
    _world,
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    recv,
    reduce_scatter,
    send,
    share_sequences,
    shutdown,
)

__all__ = [
    "DataParallel", "ProcessGroup", "Saver", "all_gather", "all_reduce", "all_to_all", "broadcast", "recv", "reduce_scatter", "send",
    "share_sequences", "shutdown", "world",
]  # fmt: skip


def world() -> ProcessGroup:
    """All processes that the launcher started. The first call connects them, waits for all of them, and, where they share cores and
    OMP_NUM_THREADS is not set, divides the cores among the processes of a host. DistributedError, saying what to install, where a
    launcher is seen but glade was built without MPI."""
    if "GLADE_NCCL_LIBRARY" not in os.environ and (nccl := _nccl_of_wheel()):
        os.environ["GLADE_NCCL_LIBRARY"] = nccl
    return _world()


def _nccl_of_wheel() -> str | None:
    """Where NVIDIA's wheel keeps NCCL's library."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return None
    for folder in spec.submodule_search_locations or [] if spec else []:
        if (library := Path(folder, "lib", "libnccl.so.2")).exists():
            return str(library)
    return None

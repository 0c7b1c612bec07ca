"""CUDA devices: whether there are any, their memory, streams, and graphs."""

import contextlib
from collections.abc import Callable, Iterator

from glade._glade import Device, Tensor
from glade._glade._cuda import (
    Graph,
    GraphedFunction as _GraphedFunction,
    Stream,
    _StreamGuard,
    current_stream,
    device_count,
    empty_cache,
    is_available,
    is_built,
    is_capturing,
    memory_stats,
    memory_summary,
    reset_peak_memory_stats,
    synchronize,
)
from glade._held import held_by as _held_by

__all__ = [
    "Graph", "GraphedFunction", "Stream", "current_stream", "device_count", "empty_cache", "is_available", "is_built", "is_capturing", "memory_stats",
    "memory_summary", "reset_peak_memory_stats", "stream", "synchronize",
]  # fmt: skip


class GraphedFunction(_GraphedFunction):
    """Calls a function from a list of tensors to a list of tensors, a training step for instance, as a graph: the second time with the same
    shapes and dtypes it is captured, and from then on replayed; on the CPU it is just called. See Graph for what can be captured."""

    def __init__(self, device: Device | str, function: Callable[[list[Tensor]], list[Tensor]]) -> None:
        super().__init__(device, _held_by(self, function))


@contextlib.contextmanager
def stream(stream: Stream) -> Iterator[Stream]:
    """Makes `stream` this thread's current stream inside: `with glade.cuda.stream(s):`."""
    guard = _StreamGuard(stream)
    try:
        yield stream
    finally:
        del guard

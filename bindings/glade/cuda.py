"""CUDA devices: whether there are any, their memory, streams, and graphs."""

import contextlib
from collections.abc import Iterator

from glade._glade._cuda import (
    Graph,
    GraphedFunction,
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

__all__ = [
    "Graph", "GraphedFunction", "Stream", "current_stream", "device_count", "empty_cache", "is_available", "is_built", "is_capturing", "memory_stats",
    "memory_summary", "reset_peak_memory_stats", "stream", "synchronize",
]  # fmt: skip


@contextlib.contextmanager
def stream(stream: Stream) -> Iterator[Stream]:
    """Makes `stream` this thread's current stream inside: `with glade.cuda.stream(s):`."""
    guard = _StreamGuard(stream)
    try:
        yield stream
    finally:
        del guard

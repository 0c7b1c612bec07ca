"""Where the time goes: ranges of work, recorded with their times on the host and on the GPU.

>>> import glade
>>> with glade.profiler.profile() as result:
...     with glade.profiler.range("square"):
...         y = glade.ones(3).square()
>>> result.profile.events[0].name
'square'

The same ranges are NVTX ranges for nsys and ncu. Without a profile and without such a tool they cost nothing measurable.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glade._glade._profiler import Profile, ProfileEvent, range, start, stop

__all__ = ["Profile", "ProfileEvent", "Result", "profile", "range", "start", "stop"]


class Result:
    """What profile() gives: its `profile`, once the `with` has ended."""

    profile: Profile


@contextlib.contextmanager
def profile(path: Any = None, device: Any = "cpu") -> Iterator[Result]:
    """Records what happens inside the `with`, for a GPU where one is named; writes a Chrome trace to `path`, where given."""
    result = Result()
    start(device)
    try:
        yield result
    finally:
        result.profile = stop()
    if path is not None:
        Path(path).write_text(result.profile.chrome_trace())

"""The progress of a long task: on a terminal one line that fits its width and is erased at the end, elsewhere a plain line every few
seconds.

>>> import sys
>>> with Progress(sys.stdout, interval=0) as progress:
...     for step in range(1, 3):
...         progress.show(step / 2, f"step {step}", "loss 0.5")
 50%  step 1  loss 0.5
100%  step 2  0:00 left  loss 0.5
"""

from __future__ import annotations

import os
import sys
import time
import unicodedata
from typing import Any, TextIO

__all__ = ["Progress"]

SHORTEST_BAR, LONGEST_BAR = 8, 24  # columns
ERASE_LINE = "\r\x1b[K"


def _columns(character: str) -> int:
    """The columns that a character takes on a terminal."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _width(text: str) -> int:
    return sum(map(_columns, text))


def _fit(share: float, fields: list[str], columns: int) -> str:
    """A bar and as many of the fields as fit."""
    text = ""
    for field in fields:
        if SHORTEST_BAR + 2 + _width(text) + 2 + _width(field) > columns:
            break
        text += "  " + field
    length = min(columns - 2 - _width(text), LONGEST_BAR)
    if length < 0:
        return ""
    filled = int(min(max(share, 0.0), 1.0) * length)
    return f"[{'#' * filled}{'.' * (length - filled)}]{text}"


def _printable(text: str) -> str:
    """The text without characters that would move the cursor, which the names of files may have."""
    return "".join(character if character.isprintable() else "?" for character in text)


class Progress:
    """Shows how much of a task is done. `file` is where to, by default the standard error; where that is no terminal, a line is written
    every `interval` seconds. What cannot be written is lost: a terminal that is gone must not end a program before it saves."""

    def __init__(self, file: TextIO | None = None, *, interval: float = 5.0) -> None:
        self._file = file if file is not None else sys.stderr
        self._is_terminal = self._file.isatty()
        self._interval = 0.1 if self._is_terminal else interval
        self._begin = self._shown = time.monotonic()
        self._is_due = self._is_terminal  # on a terminal the line is there from the beginning
        self._first: float | None = None  # the share that was done at the first call
        self._is_visible = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: Any) -> None:
        self.erase()

    def show(self, share: float, *fields: str, now: bool = False) -> None:
        """Shows that a share in [0, 1] of the task is done, `fields`, the most important first, and the time that is left. A terminal
        too narrow for all of them gets the first ones. Does nothing if the line was written just before, unless `now`."""
        clock = time.monotonic()
        if self._first is None:
            self._first, self._begin = share, clock
        if not (now or self._is_due or clock - self._shown >= self._interval):
            return
        self._shown, self._is_due = clock, False
        texts = [_printable(field) for field in fields]
        if share > self._first:
            seconds = round((clock - self._begin) * (1 - share) / (share - self._first))
            texts.insert(1, f"{seconds // 60}:{seconds % 60:02} left")
        if self._is_terminal:
            self._write(ERASE_LINE + _fit(share, texts, self._columns() - 1))  # in the last column some terminals wrap
            self._is_visible = True
        else:
            self._write("  ".join([f"{100 * share:3.0f}%", *texts]) + "\n")

    def erase(self) -> None:
        """Erases the line; the next show() draws it again. Messages that are not for print() come after this."""
        if self._is_visible:
            self._write(ERASE_LINE)
            self._is_visible, self._is_due = False, True

    def print(self, text: str) -> None:
        """Writes a line of text that stays where the progress was."""
        self.erase()
        self._write(text + "\n")

    def _columns(self) -> int:
        """Asked for every line, as a window's size changes."""
        try:
            return os.get_terminal_size(self._file.fileno()).columns or 80
        except OSError:
            return 80

    def _write(self, text: str) -> None:
        try:
            self._file.write(text)
            self._file.flush()
        except OSError:
            pass

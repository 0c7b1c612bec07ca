"""What a program measured: a line for every file, and CSV with the columns file, metric and value."""

import csv
from contextlib import AbstractContextManager


def number(value, digits):
    """Counts are whole numbers of any length."""
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"


class Results(AbstractContextManager):
    def __init__(self, log):
        """`log` is a file that is written anew, or None."""
        self._file = open(log, "w", newline="", encoding="utf-8", errors="surrogateescape") if log else None
        self._write(["file", "metric", "value"])

    def __exit__(self, *_):
        if self._file:
            self._file.close()

    def add(self, file, metrics):
        """`metrics` are values by name."""
        print(f"{file}: " + ", ".join(f"{name} {number(value, 6)}" for name, value in metrics.items()), flush=True)
        for name, value in metrics.items():
            self._write([file, name, number(value, 9)])

    def _write(self, row):
        if self._file:
            csv.writer(self._file, lineterminator="\n").writerow(row)
            self._file.flush()

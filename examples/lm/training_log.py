"""What a training run shows while it runs, and records."""

import math
import sys
import time

import glade
from glade.progress import Progress

from lm.program import ProgramError


def in_bits(loss):
    return loss / math.log(2)


def check_finite(loss, what):
    """ProgramError for a loss that is not finite; `what` names it."""
    if not math.isfinite(loss):
        raise ProgramError(f"the {what} is {'nan' if math.isnan(loss) else 'infinite'}: try a smaller --lr")


def columns(unit):
    """How the values of a log are written."""
    return {
        "step": "d",
        "loss": ".9g",
        f"bits_per_{unit}": ".6f",
        f"validation_bits_per_{unit}": ".6f",
        "learning_rate": ".6g",
        "tokens_per_second": ".0f",
        "seconds": ".3f",
    }


class TrainingLog:
    """Shows progress and writes a row a step to `logs`. Losses are read in batches, some steps late, so that a GPU is not kept waiting
    for the host."""

    def __init__(self, logs, tokens_a_step, unit):
        self._unwritten = set()  # logs that keep rows, as was said
        self._logs, self._tokens_a_step, self._unit = logs, tokens_a_step, unit
        self._progress = Progress(sys.stdout)
        self._pending = []
        self._start = self._flushed = time.perf_counter()  # the time since a flush went into the pending steps
        self._tokens_per_second = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.erase()
        for log in self._logs:
            log.close()

    def erase(self):
        """Takes the progress away, for another line in its place."""
        self._progress.erase()

    def add(self, step, share, learning_rate, loss):
        """To be called after every step; `share` in [0, 1] is that of the run that is done."""
        self._pending.append((step, share, learning_rate, loss))
        if time.perf_counter() - self._flushed > 0.2:
            self.flush()

    def flush(self):
        """Shows and logs the steps so far. ProgramError for a loss that is not finite."""
        if not self._pending:
            return
        losses = glade.stack([loss for *_, loss in self._pending]).tolist()
        now = time.perf_counter()
        speed = len(losses) * self._tokens_a_step / (now - self._flushed)
        self._tokens_per_second = 0.9 * self._tokens_per_second + 0.1 * speed if self._tokens_per_second else speed
        self._flushed = now
        for (step, share, learning_rate, _), loss in zip(self._pending, losses):
            check_finite(loss, f"loss of step {step}")
            row = {"step": step, "loss": loss, f"bits_per_{self._unit}": in_bits(loss), "learning_rate": learning_rate}
            self._write(row | {"tokens_per_second": self._tokens_per_second, "seconds": self.seconds()})
        self._pending.clear()
        self._flush_logs()
        self._progress.show(
            share,
            f"step {step}",
            f"{in_bits(loss):.3f} bits per {self._unit}",
            f"{self._tokens_per_second / 1000:.1f}k tokens/s",
            f"loss {loss:.3f}",
            f"lr {learning_rate:.1e}",
            now=share >= 1,
        )

    def add_validation(self, step, loss):
        """The same, then shows and logs the validation loss after the last step, which must be finite, too."""
        self.flush()
        check_finite(loss, f"validation loss after step {step}")
        self.print(f"step {step}: validation {in_bits(loss):.3f} bits per {self._unit}")
        self._write({"step": step, f"validation_bits_per_{self._unit}": in_bits(loss), "seconds": self.seconds()})
        self._flush_logs()
        self._flushed = time.perf_counter()

    def print(self, line):
        """A line that stays, above the progress."""
        self._progress.print(line)

    def finish(self):
        """To be called at the end. ProgramError where rows of a log cannot be written still."""
        self.flush()
        self.erase()
        for log in self._logs:
            log.flush()

    def erase(self):
        """Erases the progress; messages that are not for print() come after this."""
        self._progress.erase()

    def seconds(self):
        """Since the construction."""
        return time.perf_counter() - self._start

    def _write(self, row):
        for log in self._logs:
            log.write(row)

    def _flush_logs(self):
        for log in self._logs:
            try:
                log.flush()
                self._unwritten.discard(log)
            except ProgramError as error:
                if log not in self._unwritten:
                    self.print(f"{error}; its rows are kept, and written as soon as they can be")
                self._unwritten.add(log)

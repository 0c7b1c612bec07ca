"""What a training run was made with, as its checkpoints hold it. docs/checkpoint_format.md describes it."""

import zlib

import glade

from lm.program import ProgramError

PREFIX = "run."  # of the names in a checkpoint's data
SECONDS = "--seconds"  # is no option: what a run of --minutes has trained for


class RunSettings:
    """Gives options of a run their values: those of the command line, else those of the checkpoint to resume from, else defaults. An option
    that would make another run of it is refused; another schedule is only worth a warning. Checkpoints that were written before settings
    were saved hold none."""

    def __init__(self, resumed):
        """`resumed` is the checkpoint, or None for a new run."""
        self._path = resumed.path if resumed else None
        self._resumed = resumed.data if resumed else {}
        self._before, self._now = [], []  # parts of the schedule that differ
        self.state_dict = {}  # for a checkpoint's data

    def fixed(self, option, given, otherwise):
        """A whole number. ProgramError, naming the option and both values, where `given` is another one than the checkpoint's."""
        before = self._saved(option, glade.int64)
        before = before if before is None else before % 2**64
        if before is not None and given is not None and before != given:
            raise ProgramError(f"{self._path}: the run was made with {option} {before}, not {given}")
        return self._choose(option, before if given is None else given, otherwise)

    def fix_data(self, data):
        """The same for the tokens of --data: their number and a checksum."""
        now = len(data), checksum(data)
        before = self._saved("--data-tokens", glade.int64), self._saved("--data-crc32", glade.int64)
        if None not in before and before != now:
            counts = f"{before[0]} tokens with the checksum {before[1]:08x}, not {now[0]} with {now[1]:08x}"
            raise ProgramError(f"{self._path}: the run was made with other --data: {counts}")
        self._choose("--data-tokens", now[0], None)
        self._choose("--data-crc32", now[1], None)

    def schedule(self, option, given, otherwise):
        """A number, of the type of `otherwise`. Another value than the checkpoint's becomes a part of changes()."""
        before = self._saved(option, glade.float64 if isinstance(otherwise, float) else glade.int64)
        value = self._choose(option, before if given is None else given, otherwise)
        if before is not None and before != value:
            self._note_change(f"{option} {shortest(before)}", f"{option} {shortest(value)}")
        return value

    def schedule_name(self, option, given, names):
        """The same for one of `names`, by default the first. The checkpoint holds its place among them. ProgramError where that is none."""
        before = self._saved(option, glade.int64)
        if before is not None and not 0 <= before < len(names):
            raise ProgramError(f"{self._path}: data/{name_of(option)} is {before}, expected a value in [0, {len(names) - 1}]")
        place = self._choose(option, before if given is None else names.index(given), 0)
        if before is not None and before != place:
            self._note_change(f"{option} {names[before]}", f"{option} {names[place]}")
        return names[place]

    def seconds_before(self):
        """For how long a run of --minutes trained before the checkpoint."""
        return self._saved(SECONDS, glade.float64) or 0.0

    def set_seconds(self, seconds):
        """Keeps how long it has trained now."""
        self._choose(SECONDS, seconds, None)

    def changes(self):
        """A sentence about the schedule that differs from the checkpoint's, or ""."""
        if not self._before:
            return ""
        return f"{self._path}: the run was made with {', '.join(self._before)} and goes on with {', '.join(self._now)}"

    def _note_change(self, before, now):
        self._before.append(before)
        self._now.append(now)

    def _choose(self, option, value, otherwise):
        value = otherwise if value is None else value
        if isinstance(value, float):
            self.state_dict[name_of(option)] = glade.tensor(value, dtype=glade.float64)
        else:
            bits = value - 2**64 if value >= 2**63 else value  # a seed has 64 bits
            self.state_dict[name_of(option)] = glade.tensor(bits, dtype=glade.int64)
        return value

    def _saved(self, option, dtype):
        name = name_of(option)
        found = self._resumed.get(name)
        if found is None:
            return None
        if found.dtype != dtype or found.numel() != 1:
            raise ProgramError(f"{self._path}: data/{name} is no number of type {dtype.name}")
        return found.item()


def name_of(option):
    """"run.seq_len" for "--seq-len"."""
    return PREFIX + option.removeprefix("--").replace("-", "_")


def shortest(number):
    """Whole numbers without a point."""
    return repr(number).removesuffix(".0")


def checksum(data):
    """The CRC-32 of tokens as little-endian int64: of all where there are at most 2^24, else of 4096 blocks of 4096 tokens each, of which
    block i begins at token i * (size - 4096) // 4095."""
    blocks = block = 4096
    size = len(data)
    is_whole = size <= blocks * block
    crc = 0
    for i in range(-(-size // block) if is_whole else blocks):
        begin = i * block if is_whole else i * (size - block) // (blocks - 1)
        crc = zlib.crc32(data.read(begin, min(block, size - begin)).numpy().astype("<i8").tobytes(), crc)
    return crc

"""Records of a run: CSV files, event files for TensorBoard, and memory."""

import os

from lm.program import ProgramError


def cut_log(path, step):
    """Takes from a CSV file, whose first column is the step, the rows of later steps than `step` and a last row that was cut: what a run
    wrote after the checkpoint that it goes on from."""
    if not path.is_file():
        return
    end = 0  # of what stays
    with path.open("rb") as file:
        for row in file:
            first = row.partition(b",")[0]
            if not row.endswith(b"\n") or (first.isdigit() and int(first) > step):
                break
            end += len(row)
    if end < path.stat().st_size:
        os.truncate(path, end)


class CSVLog:
    """A row for every step or validation; a value that is missing stays empty. Rows that cannot be written, as when the disk is full, are
    kept and written later."""

    def __init__(self, path, formats, resumed_step):
        """`formats` says how the value of each column is written; rows stay up to the step that the run goes on from, or None."""
        append = resumed_step is not None
        if append:
            cut_log(path, resumed_step)
        self._path, self._formats = path, formats
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if append else os.O_TRUNC), 0o666)
        is_empty = os.fstat(self._descriptor).st_size == 0
        self._kept = (",".join(formats) + "\n").encode() if is_empty else b""
        self.flush()

    def write(self, row):
        values = (format(row[name], how) if name in row else "" for name, how in self._formats.items())
        self._kept += (",".join(values) + "\n").encode()

    def flush(self):
        """ProgramError where rows are kept."""
        try:
            while self._kept:
                self._kept = self._kept[os.write(self._descriptor, self._kept) :]
        except OSError as error:
            raise ProgramError(f"cannot write {self._path}: {error.strerror}") from None

    def close(self):
        os.close(self._descriptor)


class TensorBoardLog:
    """A scalar for every value of a row but the step, in a new event file of the folder."""

    def __init__(self, folder, first_step):
        """`first_step` is that of a run that goes on: TensorBoard leaves out what earlier files have of later steps."""
        from tensorboardX import SummaryWriter

        suffix = f".{os.getpid()}"  # files are named by the second in which they are made
        self._writer = SummaryWriter(str(folder), purge_step=first_step or None, filename_suffix=suffix)

    def write(self, row):
        for name, value in row.items():
            if name != "step":
                self._writer.add_scalar(name, value, row["step"])

    def flush(self):
        self._writer.flush()

    def close(self):
        self._writer.close()


class MemoryLog:
    """Keeps all rows."""

    def __init__(self):
        self.rows = []

    def write(self, row):
        self.rows.append(row)

    def flush(self):
        pass

    def close(self):
        pass

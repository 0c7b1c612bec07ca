"""Records of a run: CSV files, and event files for TensorBoard."""

import csv

from lm.program import ProgramError


class CSVLog:
    """A row for every step or validation; a value that is missing stays empty."""

    def __init__(self, path, formats, append):
        """`formats` says how the value of each column is written."""
        self._formats = formats
        self._file = open(path, "a" if append else "w", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")
        if self._file.tell() == 0:
            self._writer.writerow(formats)
            self._file.flush()

    def write(self, row):
        self._writer.writerow([format(row[name], how) if name in row else "" for name, how in self._formats.items()])

    def flush(self):
        self._file.flush()

    def close(self):
        self._file.close()


class TensorBoardLog:
    """A scalar for every value of a row but the step, in a new event file of the folder."""

    def __init__(self, folder, first_step):
        """`first_step` is that of a run that goes on: TensorBoard leaves out what earlier files have of later steps."""
        try:
            from tensorboardX import SummaryWriter
        except ModuleNotFoundError:
            raise ProgramError(f"--log {folder}/: the package tensorboardX writes TensorBoard's event files: pip install tensorboardX") from None
        self._writer = SummaryWriter(str(folder), purge_step=first_step or None)

    def write(self, row):
        for name, value in row.items():
            if name != "step":
                self._writer.add_scalar(name, value, row["step"])

    def flush(self):
        self._writer.flush()

    def close(self):
        self._writer.close()

"""benchmarks/compare_operations.py: its rows run, and what was measured is kept where it is interrupted."""

import csv
import signal
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "compare_operations.py"
QUICK = ["--elements", "2^12", "--rounds", "1", "--seconds", "1e-5"]


def rows_in(folder):
    with open(folder / "operations.csv") as file:
        return list(csv.DictReader(file))


def test_every_row_runs(tmp_path):
    result = subprocess.run([sys.executable, SCRIPT, *QUICK, "--out", tmp_path], capture_output=True, text=True)
    assert result.returncode == 0 and result.stderr == ""
    assert result.stdout.splitlines()[1].startswith("clone                       float32")
    rows = rows_in(tmp_path)
    assert len(rows) > 380 and all(float(row["glade_ms"]) > 0 and float(row["of_copy"]) > 0 for row in rows)


def test_a_filter_has_several_texts(tmp_path):
    subprocess.run([sys.executable, SCRIPT, *QUICK, "--filter", "zeros,cumsum 0 int64", "--out", tmp_path], check=True, capture_output=True)
    assert {(row["operation"], row["dtype"]) for row in rows_in(tmp_path)} == {("clone", "float32"), ("zeros", "float32"), ("cumsum 0", "int64")}


def test_an_interrupted_run_keeps_its_rows(tmp_path, heard_signals):
    for number in (signal.SIGINT, signal.SIGTERM):
        folder = tmp_path / number.name
        command = [sys.executable, SCRIPT, "--elements", "2^12", "--seconds", "0.1", "--out", folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline().startswith("operation")
            assert process.stdout.readline().startswith("clone")
            process.send_signal(number)
            rest = process.stdout.read()
        assert process.returncode == 0 and "interrupted" in rest
        assert rows_in(folder)[-1]["operation"] in ("clone", "copy transposed")

"""The example programs, run as a user runs them: in a pipe, or in a terminal of a given width."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

import glade

ROOT = Path(__file__).parents[2]


def python(name):
    """The command of a program in Python."""
    return [sys.executable, ROOT / "examples" / f"{name}.py"]


def without(packages, name, *options):
    """The command of a module as a program where these packages are not installed."""
    script = f"import runpy, sys; sys.modules.update(dict.fromkeys({packages!r})); sys.path.insert(0, {str(ROOT / 'examples')!r})"
    script += f"; sys.argv[0] = '{name}.py'; runpy.run_module('{name}', run_name='__main__')"
    return [sys.executable, "-c", script, *options]


def cpp(name):
    """The command of a program in C++; skips the test where it is not built."""
    program = ROOT / "build" / "examples" / name
    if not program.exists():
        pytest.skip(f"the C++ program {name} is not built")
    return [program]


def environment():
    """With one thread: the models are small, and beside other programs several threads would wait for one another."""
    package = str(Path(glade.__file__).parents[1])
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join([package, *filter(None, others)])}


def call(command, folder, **streams):
    """What a program prints."""
    result = subprocess.run(command, check=True, timeout=300, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True, errors="replace", **streams)
    return result.stdout


def skip_without_libraries(command, folder):
    """Skips the test where the program in C++ was built without a library that its input needs."""
    errors = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment()).stderr
    if "built without the library" in errors:
        pytest.skip(errors.strip().splitlines()[-1])


def refused(command, folder):
    """The exit code of a program that ends with one line of error, and that line."""
    result = subprocess.run(command, timeout=300, cwd=folder, env=environment(), capture_output=True, text=True, errors="replace")
    assert result.returncode != 0 and result.stderr.count("\n") == 1, result.stderr
    return result.returncode, result.stderr.rstrip("\n")


def start(command, folder, **streams):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, **streams}
    return subprocess.Popen(command, cwd=folder, env=environment(), **streams)


def wait_until(condition):
    for _ in range(12000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("waited in vain")


def open_terminal(columns):
    """The two ends of a pseudo-terminal, the program's second; 0 columns: of unknown size."""
    try:
        ours, theirs = pty.openpty()
    except OSError as error:
        pytest.skip(f"no pseudo-terminal can be made: {error}")
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24 if columns else 0, columns, 0, 0))
    return ours, theirs


def read_terminal(ours):
    """All that is written until the other end is closed. Closes this one."""
    output = bytearray()
    try:
        while block := os.read(ours, 65536):
            output += block
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    return output.decode()


def run_in_terminal(command, folder, columns):
    """What a program writes to a terminal, unchanged."""
    ours, theirs = open_terminal(columns)
    process = start(command, folder, stdin=theirs, stdout=theirs, stderr=theirs, text=False, start_new_session=True)
    os.close(theirs)
    output = read_terminal(ours)
    assert process.wait(timeout=300) == 0, output
    return output


def screen(output, columns):
    """The lines that a terminal shows in the end: a line that is too long goes on in the next."""
    lines, row, column = [[]], 0, 0
    for i, character in enumerate(output.replace("\x1b[K", "\0")):
        if character == "\r":
            column = 0
        elif character == "\n":
            row, column = row + 1, 0
            if row == len(lines):
                lines.append([])
        elif character == "\0":
            del lines[row][column:]
        else:
            assert character.isprintable(), f"{character!r} at {i}"
            if column == columns:
                row, column = row + 1, 0
                lines.insert(row, [])
            lines[row][column : column + 1] = [character]
            column += 1
    return ["".join(line) for line in lines]

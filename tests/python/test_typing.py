"""The stubs: as the extension module is, and accepted by a strict type checker in a program that uses the package."""

import subprocess
import sys
from pathlib import Path

import pytest

import glade

HERE = Path(__file__).parent
PACKAGE = Path(glade.__file__).resolve().parent


def test_mypy_accepts_a_program(tmp_path):
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path, HERE / "typed_program.py"]
    environment = {"MYPYPATH": str(PACKAGE.parent), "PATH": "/usr/bin:/bin"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_program_runs():
    exec(compile((HERE / "typed_program.py").read_text(), "typed_program.py", "exec"), {"__name__": "typed_program"})  # noqa: S102


def test_stubs_are_up_to_date():
    pybind11 = pytest.importorskip("pybind11")
    if pybind11.version_info < (3, 1):
        pytest.skip("older versions of pybind11 write signatures in another way")
    script = HERE.parents[1] / "scripts" / "make_stubs.py"
    environment = {"PYTHONPATH": str(Path(glade.__file__).parents[1]), "PATH": "/usr/bin:/bin"}
    result = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr

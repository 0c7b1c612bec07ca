"""The extension beside other libraries, with the toolchain's C++ runtime and with libstdc++ linked into glade's libraries."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import glade

PACKAGE = Path(glade.__file__).parent
STATIC_RUNTIME = PACKAGE.parents[1] / "tests" / "linking" / "static_runtime"  # made by tests/linking/CMakeLists.txt
PROGRAM = """
x = glade.tensor([1.5, -2.0])
assert str(x) == "tensor([ 1.5, -2. ])", str(x)
for call, error in ((lambda: x + glade.ones(3), ValueError), (lambda: x[5], IndexError), (lambda: glade.load("/nowhere"), OSError)):
    try:
        call()
    except error as caught:
        print(caught)
    else:
        raise SystemExit(f"no {error}")
print(glade.__file__)
"""
USE_TORCH = """
assert str(torch.tensor([1.5, -2.0])).startswith("tensor([ 1.5")
try:
    torch.ones(2) + torch.ones(3)
except RuntimeError as caught:
    print(caught)
"""


@pytest.fixture(scope="module", params=["shared", "static"])
def folder(request, tmp_path_factory):
    """The folder to import glade from."""
    if request.param == "shared":
        return PACKAGE.parent
    modules = list(STATIC_RUNTIME.glob("_glade*.so"))
    if not modules:
        pytest.skip("there are no libraries with libstdc++ inside: the tests in C++ are not built, or with a sanitizer")
    package = tmp_path_factory.mktemp("static_runtime") / "glade"
    package.mkdir()
    for file in PACKAGE.iterdir():
        if not file.name.endswith(".so") and file.name != "__pycache__":
            (package / file.name).symlink_to(file)
    for module in modules:
        (package / module.name).symlink_to(module)
    return package.parent


def run(folder, program):
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_errors_and_printing(folder):
    lines = run(folder, "import glade" + PROGRAM)
    assert Path(lines[-1]).parents[1] == folder
    assert len(lines) == 4 and "[3]" in lines[0]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("order", ["glade, torch", "torch, glade"])
def test_beside_torch(folder, order):
    lines = run(folder, f"import {order}" + PROGRAM + USE_TORCH)
    assert len(lines) == 5


def test_import_is_light():
    """NumPy, which takes longer to import than glade, and thread pools come with the first use."""
    program = "import sys; own = set(sys.modules); import glade; more = sys.modules.keys() - own; "
    program += "print(sorted(more & {'numpy', 'concurrent.futures', 'asyncio', 'inspect'}))"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "[]\n"

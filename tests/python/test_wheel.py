"""The wheel that `pip wheel .` builds: it runs where there is neither the source tree nor a library of glade's."""

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy
import pytest

import glade

ROOT = Path(__file__).parents[2]
BUILD = Path(glade.__file__).parents[2]  # of the package that the other tests import
PROGRAM = """
import sys
import time

begin = time.perf_counter()
import glade
seconds = time.perf_counter() - begin

x = glade.randn(64, 64, requires_grad=True)
(x @ x).square().mean().backward()
model = glade.nn.models.GLAForCausalLM(hidden_size=32, num_hidden_layers=1, num_heads=2)
glade.save(model, "model.h5")
glade.nn.models.from_checkpoint(glade.load("model.h5"))
print(seconds)
print(*sorted(name.partition(".")[0] for name in sys.modules))
with open("/proc/self/maps") as file:
    print(*sorted({line.split(maxsplit=5)[5].strip() for line in file if ".so" in line}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built like the library under test and beside it, so that a compiler cache has all objects already."""
    pytest.importorskip("scikit_build_core")
    cache = BUILD / "CMakeCache.txt"
    if not cache.exists():
        pytest.skip("the package under test is not in a build folder")
    if shutil.which("ccache") is None and glade.cuda.is_built():
        pytest.skip("there is no compiler cache: all CUDA sources would be compiled again")
    folder = tmp_path_factory.mktemp("wheel")
    found = dict(re.findall(r"^(\w+):\w+=(.*)$", cache.read_text(), re.MULTILINE))
    names = ["GLADE_CUDA", "GLADE_WERROR", "GLADE_CPU_ARCH", "CMAKE_CUDA_ARCHITECTURES"]
    options = [f"--config-settings=cmake.define.{name}={found[name]}" for name in names if name in found]
    options.append(f"--config-settings=build-dir={ROOT / 'build-wheel'}")
    command = [sys.executable, "-m", "pip", "wheel", ROOT, "--no-build-isolation", "--no-deps", "--quiet", "--wheel-dir", folder, *options]
    compilers = {"CC": found["CMAKE_C_COMPILER"], "CXX": found["CMAKE_CXX_COMPILER"]}
    subprocess.run(command, check=True, timeout=1800, env={**os.environ, **compilers})
    (file,) = folder.glob("glade-*.whl")
    return file


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """The interpreter of an environment that holds the wheel and NumPy alone."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    interpreter = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    for part in Path(numpy.__file__).parents[1].glob("numpy*"):
        (packages / part.name).symlink_to(part)
    subprocess.run([sys.executable, "-m", "pip", "--python", interpreter, "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    return interpreter


def run(python, folder):
    environment = {"PATH": "/nowhere", "OMP_WAIT_POLICY": "passive"}
    output = subprocess.run([python, "-c", PROGRAM], check=True, capture_output=True, text=True, cwd=folder, env=environment, timeout=300).stdout
    seconds, modules, libraries = output.splitlines()
    return float(seconds), set(modules.split()), libraries.split()


def test_runs_in_a_clean_environment(python, tmp_path):
    _, modules, libraries = run(python, tmp_path)
    here = str(python.parents[1])
    carried = {Path(name).name.partition(".so")[0] for name in libraries if name.startswith(f"{here}/")}
    assert {"libglade", "_glade"} <= {name.partition(".")[0] for name in carried}
    assert not [name for name in libraries if str(BUILD) in name or name.startswith(str(ROOT / "bindings"))]
    of_the_system = {Path(name).name.partition(".so")[0].partition("-")[0] for name in libraries if name.startswith(("/lib/", "/usr/lib/"))}
    allowed = {"libc", "libm", "libdl", "librt", "libpthread", "libutil", "libresolv", "libgcc_s", "libstdc++", "ld", "libz", "libexpat"}
    assert of_the_system <= allowed | {name for name in of_the_system if name.startswith(("libpython", "libcuda", "libcu", "libnv"))}
    standard = set(sys.stdlib_module_names) | {"__main__", "numpy", "glade"}
    assert {name for name in modules if not name.startswith("_")} <= standard


def test_import_is_quick(python, tmp_path):
    assert min(run(python, tmp_path)[0] for _ in range(5)) < 0.3


def test_what_the_wheel_holds(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("glade/__init__.py", "glade/py.typed", "glade/_glade/__init__.pyi", "glade/libglade.so", "glade/torch.py"):
        assert name in names
    assert not [name for name in names if name.endswith((".cpp", ".h", ".cu", ".a"))]

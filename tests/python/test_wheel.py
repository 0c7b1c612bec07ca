"""The wheel that `pip wheel .` builds: it runs where there is neither the source tree nor a library of glade's, and is small."""

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

startup = set(sys.modules)  # a distribution's sitecustomize may be among them
begin = time.perf_counter()
import glade
seconds = time.perf_counter() - begin

x = glade.randn(64, 64, requires_grad=True)
(x @ x).square().mean().backward()
model = glade.nn.models.GLAForCausalLM(hidden_size=32, num_hidden_layers=1, num_heads=2)
glade.save(model, "model.h5")
glade.nn.models.from_checkpoint(glade.load("model.h5"))
print(seconds)
print(*sorted(name.partition(".")[0] for name in sys.modules.keys() - startup))
with open("/proc/self/maps") as file:
    print(*sorted({line.split(maxsplit=5)[5].strip() for line in file if ".so" in line}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built like the library under test and beside it, so that a compiler cache has the objects of CUDA already."""
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
    packages = str(python.parents[1])
    carried = {Path(name).name.partition(".")[0] for name in libraries if name.startswith(f"{packages}/")}
    assert carried == {"_glade", "libglade", "libgomp", "libfmt", "libsleef"}
    assert not [name for name in libraries if str(BUILD) in name or name.startswith(str(ROOT / "bindings"))]
    standard = set(sys.stdlib_module_names) | {"__main__", "numpy", "glade"}
    assert {name for name in modules if not name.startswith("_")} <= standard


def test_import_is_quick(python, tmp_path):
    assert min(run(python, tmp_path)[0] for _ in range(5)) < 0.3


def test_each_library_is_held_once(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    libraries = {path.name: path.relative_to(tmp_path) for path in tmp_path.rglob("*") if ".so" in path.name}
    (module,) = (name for name in libraries if name.startswith("_glade."))
    fmt, openmp, sleef = sorted(libraries.keys() - {module, "libglade.so"})
    assert fmt.startswith("libfmt.so.") and openmp.startswith("libgomp.so.") and sleef.startswith("libsleef.so.")
    assert {libraries[name].parent for name in (fmt, openmp, sleef)} == {Path("glade/lib")}

    needed = {name: dynamic_entries(tmp_path / path, "NEEDED") for name, path in libraries.items()}
    for name in (fmt, openmp, sleef):
        assert dynamic_entries(tmp_path / libraries[name], "SONAME") == {name}  # or another copy could be loaded beside it
    assert {fmt, openmp, sleef} <= needed["libglade.so"] and "libglade.so" in needed[module]
    of_the_system = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "ld-linux-x86-64.so.2"}
    others = set().union(*needed.values()) - libraries.keys() - of_the_system
    assert all(re.match(r"lib(cudart|cublas|cublasLt)\.so", name) for name in others) and (not others or glade.cuda.is_built())
    if others:
        (path,) = dynamic_entries(tmp_path / libraries["libglade.so"], "RUNPATH|RPATH")
        assert "$ORIGIN/../nvidia/" in path


def dynamic_entries(library, kind):
    lines = subprocess.run(["readelf", "--dynamic", library], check=True, capture_output=True, text=True).stdout
    return set(re.findall(rf"\((?:{kind})\).*\[(.*)\]", lines))


def test_what_the_wheel_holds(wheel):
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    for name in ("glade/__init__.py", "glade/py.typed", "glade/_glade/__init__.pyi", "glade/libglade.so", "glade/torch.py"):
        assert name in names
    assert not [name for name in names if name.endswith((".cpp", ".h", ".cu", ".a"))]
    if not glade.cuda.is_built():
        assert wheel.stat().st_size < 25e6

    licenses = {Path(name).name for name in names if ".dist-info/licenses/" in name}
    assert licenses == {"LICENSE", *(file.name for file in (ROOT / "licenses").iterdir())}
    (metadata,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    assert "\nLicense-Expression: Apache-2.0\n" in metadata

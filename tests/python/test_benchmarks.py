"""The benchmark programs, their options and their raw results are described."""

import ast
import fnmatch
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
RESULTS = BENCHMARKS / "results"
SHARED = {"plotting.py", "fla_tuning.py", "worker_pool.py"}
COMMANDS = [*BENCHMARKS.glob("*.py"), *(ROOT / "bindings" / "glade").glob("*.py"), *(ROOT / "scripts").glob("*.py")]


def options_without_help(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            text = next((keyword.value for keyword in node.keywords if keyword.arg == "help"), None)
            if text is None or (isinstance(text, ast.Constant) and len(text.value) < 5):
                yield ast.unparse(node.args[0])


def test_an_option_without_help_is_found():
    source = "p.add_argument('--a', help='what it is')\np.add_argument('--b', type=int)\np.add_argument('--c', help='')"
    assert list(options_without_help(source)) == ["'--b'", "'--c'"]


@pytest.mark.parametrize("program", COMMANDS, ids=lambda path: path.name)
def test_every_option_has_help(program):
    assert list(options_without_help(program.read_text())) == []


@pytest.mark.parametrize("program", [path for path in BENCHMARKS.glob("*.cpp") if "CLI11_PARSE" in path.read_text()], ids=lambda path: path.name)
def test_every_option_of_a_program_in_cpp_has_help(program):
    source = program.read_text()
    names = re.findall(r'add_(?:option|flag)\("([^"]*)"', source)
    assert names == re.findall(r'add_(?:option|flag)\("([^"]*)",[^";]*"[^"]{4,}"', source)
    assert names


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed")
@pytest.mark.parametrize("name", ["compare_fla_accuracy.py", "compare_gpt_cpu.py", "compare_train_cpu.py", "step_parts.py"])
def test_a_missing_library_is_an_error_of_one_line(name):
    done = subprocess.run([sys.executable, BENCHMARKS / name], capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(rf"{name}: .*torch.*\n", done.stderr, re.IGNORECASE)


def test_parts_of_a_step():
    spec = importlib.util.spec_from_file_location("step_parts", BENCHMARKS / "step_parts.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    assert program.covered([("a", 0, 10), ("b", 5, 15), ("c", 20, 21)]) == (16, 5)
    names = {"nvjet_sm90_tst": "matrix products", "cuda::adamw_kernel<float>": "AdamW, clipping", "Memset": "copies and zeros", "scale_kernel": "all else"}
    names |= {"chunk_sm90::pass_kernel<x>": "recurrence", "NormalizedLogsigmoidBackward": "gates", "norms::backward_rows": "norms"}
    assert {name: program.part_of(name) for name in names} == names


def test_every_program_is_on_the_page():
    programs = {path.name for path in BENCHMARKS.glob("*.py")} - SHARED | {path.stem for path in BENCHMARKS.glob("*.cpp")}
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs" / "benchmarks.md").read_text(), re.MULTILINE)
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    assert {name for row in rows for name in re.findall(r"`([\w.]+)`", row)} | {"source_text.py"} == programs and "`source_text.py`" in text


def descriptions(result):
    """The README.md of the result's folder and of those above, up to that of its day."""
    folder = result.parent
    while folder != RESULTS:
        if (folder / "README.md").exists():
            yield (folder / "README.md").read_text()
        folder = folder.parent


def is_described(result):
    patterns = [name for text in descriptions(result) for name in re.findall(r"`([\w*.-]+\.\w+)`", text)]
    return any(fnmatch.fnmatch(result.name, pattern) for pattern in patterns)


def test_every_raw_result_is_described():
    results = [path for path in RESULTS.rglob("*") if path.is_file() and path.name != "README.md"]
    assert len(results) > 50
    assert [str(path.relative_to(RESULTS)) for path in results if not is_described(path)] == []

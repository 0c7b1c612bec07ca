"""The examples: the Python and the C++ training program give the same losses and read each other's checkpoints; recall is learned."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import glade

ROOT = Path(__file__).parents[2]
OPTIONS = "--hidden 32 --layers 2 --heads 2 --seq-len 32 --batch 4 --warmup 2 --eval-every 4 --device cpu".split()


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"{i} squared is {i * i}. " for i in range(500)))
    return path


def call(command, folder):
    """What a program prints."""
    environment = {**os.environ, "PYTHONPATH": str(Path(glade.__file__).parents[1])}
    return subprocess.run(command, check=True, timeout=300, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True).stdout


def run(program, text, log, *options):
    call([*program, "--data", text, "--log", log, *OPTIONS, *options], log.parent)
    with open(log) as file:
        return [float(row["loss"]) for row in csv.DictReader(file) if row["loss"]]


def python():
    pytest.importorskip("tqdm")
    return [sys.executable, ROOT / "examples" / "train_lm.py"]


@pytest.mark.parametrize("model", ["gla", "lightning"])
def test_same_losses_as_in_cpp(model, text, tmp_path):
    program = ROOT / "build" / "examples" / "train_lm"
    if not program.exists():
        pytest.skip("the C++ examples are not built")
    first = run(python(), text, tmp_path / "first.csv", "--steps", "8", "--model", model, "--save", tmp_path / "first.h5")
    second = run(python(), text, tmp_path / "second.csv", "--steps", "8", "--model", model)
    cpp = run([program], text, tmp_path / "cpp.csv", "--steps", "8", "--model", model, "--save", tmp_path / "cpp.h5")
    assert first == second
    assert first == pytest.approx(cpp, abs=1e-6)
    states = [glade.load(tmp_path / name).model for name in ("first.h5", "cpp.h5")]
    assert all(states[0][name].tolist() == states[1][name].tolist() for name in states[0])
    # Also those of earlier versions and other machines, whose sums of float32 numbers may have another order.
    assert first == pytest.approx(json.loads((ROOT / "tests" / "data" / "train_lm_losses.json").read_text())[model], rel=1e-4)


def test_resuming_a_checkpoint_of_the_other_program(text, tmp_path):
    program = ROOT / "build" / "examples" / "train_lm"
    if not program.exists():
        pytest.skip("the C++ examples are not built")
    whole = run(python(), text, tmp_path / "whole.csv", "--steps", "8")
    run([program], text, tmp_path / "half.csv", "--steps", "8", "--stop-at", "4", "--save", tmp_path / "half.h5")
    rest = run(python(), text, tmp_path / "rest.csv", "--steps", "8", "--resume", tmp_path / "half.h5")
    assert rest == pytest.approx(whole[4:], abs=1e-6)


def test_plot(text, tmp_path):
    pytest.importorskip("matplotlib")
    run(python(), text, tmp_path / "log.csv", "--steps", "3", "--plot", tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("model", ["gla", "lightning"])
def test_associative_recall(model, tmp_path):
    """Less of it than by default, as far as one pair of every sequence must be held."""
    pytest.importorskip("tqdm")
    options = "--pairs 1 2 --seq-len 8 --hidden 32 --steps 250 --batch 32 --lr 0.01".split()
    output = call([sys.executable, ROOT / "examples" / "associative_recall.py", "--models", model, "--device", "cpu", *options], tmp_path)
    assert float(re.search(r"accuracy 1 pairs ([\d.]+)%", output)[1]) > 95

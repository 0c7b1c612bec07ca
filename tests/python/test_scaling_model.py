"""benchmarks/scaling_model.py: its counts, what it was checked against, and the tables of docs/scaling.md."""

import dataclasses
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "scaling_model.py"
spec = importlib.util.spec_from_file_location("scaling_model", SCRIPT)
scaling = importlib.util.module_from_spec(spec)
sys.modules["scaling_model"] = scaling
spec.loader.exec_module(scaling)


def run(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True)


def test_the_page_shows_the_tables():
    result = run()
    assert result.returncode == 0, result.stderr
    page = (ROOT / "docs" / "scaling.md").read_text()
    for table in result.stdout.strip().split("\n\n"):
        assert table in page, table
    slow = run("--network", "50").stdout.strip().split("\n\n")[1]
    assert slow in page, slow


def measured(file, begin):
    """The mean of the steps, in milliseconds, of the lines of a raw result that begin so."""
    text = (ROOT / "benchmarks" / "results" / "2026-11-23_h200" / file).read_text()
    steps = re.findall(rf"^{re.escape(begin)}.*? step ([\d.]+) ms", text, re.MULTILINE)
    return sum(map(float, steps)) / len(steps)


BATCHES = {"134M": "16x2048", "374M": "8x2048", "1.3B": "4x2048"}


@pytest.mark.parametrize("model", scaling.MODELS, ids=lambda model: model.name)
def test_the_measured_steps_are_those_of_the_raw_results(model):
    kinds = {"no communication": model.step, "thread blocks": model.thread_blocks, "copies": model.copies, "shard 3": model.shard3}
    assert {kind: measured("copies.txt", f"{model.name} {BATCHES[model.name]} {kind}:") for kind in kinds} == pytest.approx(kinds)


@pytest.mark.parametrize("model", scaling.MODELS, ids=lambda model: model.name)
def test_efficiency_of_two_gpus_is_near_the_measured_one(model):
    assert scaling.efficiency(model, 2) == pytest.approx(model.step / model.copies, abs=0.011)
    assert scaling.efficiency(model, 2, shard=3) == pytest.approx(model.step / model.shard3, abs=0.022)
    alone = dataclasses.replace(model, step=measured("scaling.txt", f"{model.name} alone:"))  # to which the other fit was made
    assert scaling.efficiency(alone, 2, copies=False) == pytest.approx(alone.step / measured("scaling.txt", f"{model.name} ctas 8:"), abs=0.015)


def test_no_other_fit_of_copies_is_nearer(monkeypatch):
    def squares(fixed, exposed):
        monkeypatch.setattr(scaling, "FIT_OF_COPIES", (fixed, exposed))
        return sum((scaling.efficiency(model, 2) - model.step / model.copies) ** 2 for model in scaling.MODELS)

    fixed, exposed = scaling.FIT_OF_COPIES
    assert all(squares(fixed, exposed) <= squares(fixed + f * 1e-4, exposed + e * 1e-2) for f in (-1, 0, 1) for e in (-1, 0, 1))


def test_bytes():
    model = dataclasses.replace(scaling.MODELS[0], parameters=1000, layers=3, state=8, keys=2)
    assert [scaling.bytes_sent(model, 4, shard) for shard in range(4)] == pytest.approx([6000, 6000, 6000, 4500])
    assert [scaling.bytes_sent(model, 4, shard, accumulate=5) for shard in range(4)] == pytest.approx([6000, 6000, 18000, 22500])
    assert [scaling.bytes_sent(model, 16, shard) for shard in range(4)] == pytest.approx([7500] * 4)
    assert scaling.sequence_bytes_sent(model, 4, sequences=2) == 3 * 3 * 2 * 4 * (8 + 2 + 8)


def test_parameters():
    glade = pytest.importorskip("glade")
    config = {"model_type": "gla", "hidden_size": 768, "num_hidden_layers": 12, "num_heads": 4, "vocab_size": 32000}
    assert sum(x.numel() for x in glade.nn.models.from_config(config).parameters()) == scaling.MODELS[0].parameters


def test_more_gpus_are_never_more_efficient():
    for model in scaling.MODELS:
        for shard in (0, 1, 3):
            values = [scaling.efficiency(model, n, shard) for n in (1, 2, 8, 9, 64, 1024)]
            assert values == sorted(values, reverse=True) and values[0] == 1
        assert scaling.efficiency(model, 64, network=12.5) < scaling.efficiency(model, 64, network=400)


def test_errors():
    result = run("--network", "0")
    assert result.returncode == 2 and result.stderr.splitlines()[-1].endswith("--network: 0, expected a number above 0")

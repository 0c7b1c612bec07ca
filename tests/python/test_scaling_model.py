"""benchmarks/scaling_model.py: its counts, what it was checked against, and the tables of docs/scaling.md."""

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


def test_the_measured_steps_are_those_of_the_raw_results():
    results = ROOT / "benchmarks" / "results"
    before, text = (results / name for name in ("2026-11-22_h200/distributed/weak_scaling.txt", "2026-11-23_h200/scaling.txt"))
    for model in scaling.MODELS:
        name = re.escape(model.name)
        if model.name == "11M":
            lines, of_one, of_two = before.read_text(), f"gla {name} ", f"2 ranks, gla {name} "
        else:
            lines, of_one, of_two = text.read_text(), f"{name} alone: ", f"{name} ctas 8: "
        steps = [re.search(rf"^{begin}.*? step ([\d.]+) ms", lines, re.MULTILINE)[1] for begin in (of_one, of_two)]
        assert [float(step) for step in steps] == [model.step, model.step_of_two]


@pytest.mark.parametrize("model", scaling.MODELS, ids=lambda model: model.name)
def test_efficiency_of_two_gpus_is_near_the_measured_one(model):
    assert scaling.efficiency(model, 2) == pytest.approx(model.step / model.step_of_two, abs=0.015)


def test_bytes():
    model = scaling.Model("", 1000, layers=3, state=8, keys=2, step=1, step_of_two=1)
    assert [scaling.bytes_sent(model, 4, shard) for shard in range(4)] == pytest.approx([6000, 6000, 6000, 6000])
    assert [scaling.bytes_sent(model, 4, shard, accumulate=5) for shard in range(4)] == pytest.approx([6000, 6000, 18000, 30000])
    assert scaling.sequence_bytes_sent(model, 4, sequences=2) == 3 * 3 * 2 * 4 * (8 + 2 + 8)


def test_parameters():
    glade = pytest.importorskip("glade")
    config = {"model_type": "gla", "hidden_size": 384, "num_hidden_layers": 6, "num_heads": 6, "vocab_size": 256}
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

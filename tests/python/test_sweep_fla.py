"""fla on the shapes of linear_attention_sweep, with a stand-in for fla, and the processes that compile its kernels."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SIZES = {"sequences": 2, "heads": 3, "K": 16, "V": 32, "dtype": "bfloat16", "forward_floor_bytes": 1000, "forward_us": 10.0, "forward_backward_us": 40.0}


@pytest.fixture(autouse=True)
def folders(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


def load(name):
    return importlib.import_module(name)


def write_sweep(*shapes):
    rows = [{**SIZES, "length": length, "gates": gates, "packed": packed} for length, gates, packed in shapes]
    for row in rows:
        if row["packed"]:
            row["cu_seqlens"] = [0, 3, 2 * row["length"]]
    Path("sweep.json").write_text(json.dumps({"rows": rows}))


class Fla:
    """Says the length of a shape as microseconds; refuses some lengths, and hangs or ends at others."""

    def __init__(self, compiles, configurations):
        self.configurations = configurations

    def __call__(self, shape):
        if shape.length == 666:
            time.sleep(60)
        if shape.length == 777:
            os._exit(1)
        if shape.length == 888:
            return ({"forward": {"chunk": 5.0}, "forward_backward": {}}, {"forward_backward chunk": "out of memory: 12 of 16"}), True
        return ({"forward": {"chunk": shape.length / self.configurations}, "forward_backward": {"chunk": 80.0}}, {}), False


def run(monkeypatch, capsys, *arguments):
    program = load("sweep_fla")
    monkeypatch.setattr(program, "Fla", Fla)
    monkeypatch.setattr(program.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(sys, "argv", ["sweep_fla.py", "sweep.json", "--shape-limit", "1", *arguments])
    program.main()
    return capsys.readouterr().out


def test_times_beside_those_of_the_sweep(monkeypatch, capsys):
    write_sweep((20, "gk", False), (666, "g", False), (777, "g", False), (888, "gk", True), (8, "none", False))
    output = run(monkeypatch, capsys, "--json", "fla.jsonl")
    lines = [json.loads(line) for line in Path("fla.jsonl").read_text().splitlines()]
    assert [line["shape"].split("_")[1] for line in lines] == ["T20", "T666", "T777", "T888", "T8"]
    assert ["B2_T20_H3_K16_V32", "gk", "bfloat16", "10.0", "10.0", "1.00", "chunk", "40.0", "80.0", "2.00", "chunk"] in [x.split() for x in output.splitlines()]
    assert "forward: 3 of 5 shapes measured, glade is slower at 2" in output
    assert "  slower: B2_T888_H3_K16_V32 gk bfloat16 packed: 0.50\n" in output
    assert "forward_backward: 2 of 5 shapes measured, glade is slower at 0, fla takes 2.00 times" in output
    for reason in ("took longer than N s", "its process ended", "out of memory: N of N"):
        assert f"  not measured: 1: {reason}\n" in output
    again = run(monkeypatch, capsys, "--json", "fla.jsonl")
    assert again == output and len(Path("fla.jsonl").read_text().splitlines()) == 5
    # The smaller time of both counts.
    below = run(monkeypatch, capsys, "--json", "fla.jsonl", "--below", "0.9", "--configurations", "4")
    assert len(Path("fla.jsonl").read_text().splitlines()) == 7 and "B2_T8_H3_K16_V32 none bfloat16: 0.20" in below


def test_goes_on_after_a_line_that_was_cut_off(monkeypatch, capsys):
    write_sweep(*((length, "g", False) for length in range(1, 11)))
    run(monkeypatch, capsys, "--json", "fla.jsonl", "--shapes", "5")
    lines = Path("fla.jsonl").read_text().splitlines()
    assert [json.loads(line)["shape"].split("_")[1] for line in lines] == ["T1", "T3", "T5", "T7", "T9"]
    Path("fla.jsonl").write_text("\n".join(lines)[:-9])
    output = run(monkeypatch, capsys, "--json", "fla.jsonl", "--shapes", "5")
    assert "forward: 5 of 10 shapes measured" in output and "not measured: 5: not tried yet" in output
    assert "forward: 5 of 10 shapes measured" in run(monkeypatch, capsys, "--json", "fla.jsonl", "--time-limit", "0")


def test_compiles_in_many_processes(monkeypatch, capsys):
    write_sweep((20, "gk", False), (777, "g", False), (8, "none", False), (30, "g", False))
    output = run(monkeypatch, capsys, "--compile", "3")
    assert "0 of 4 shapes are compiled" in output and "4 of 4 shapes done" in output and "its process ended" in output
    assert "3 of 4 shapes are compiled" in run(monkeypatch, capsys, "--compile", "3")
    assert "0 of 4 shapes are compiled" in run(monkeypatch, capsys, "--compile", "3", "--configurations", "1")
    run(monkeypatch, capsys, "--json", "fla.jsonl")
    assert "_T777_" in Path("fla.jsonl").read_text().splitlines()[-1]


def test_few_tokens_need_the_same_kernels():
    program = load("sweep_fla")
    shape = program.Shape("", 4, 5000, 3, 16, 32, "gk", "bfloat16", None, 1e9, {})
    assert (shape.smallest().sequences, shape.smallest().length, shape.forms()) == (4, 33, ["chunk"])
    packed = program.Shape("", 4, 5, 3, 16, 32, "gk+gv", "bfloat16", [0, 4, 9, 20], 1e9, {})
    assert (packed.smallest().ends, packed.forms()) == ([0, 20], ["recurrent"])


def test_pool_ends_at_the_deadline():
    pool, start, done = load("worker_pool"), time.monotonic(), []
    workers = pool.Pool(2, 100, start + 1, lambda: lambda seconds: (time.sleep(seconds), False))
    workers.run([0, 60, 0, 60, 0], lambda task, *_: done.append(task))
    assert done == [0, 0] and time.monotonic() - start < 5
    with pytest.raises(pool.NotStarted):
        pool.Pool(1, 100, start + 60, lambda: os._exit(1)).run([1], None)


def test_candidates_of_a_kernel(monkeypatch):
    tuning, made = load("fla_tuning"), []

    class Autotuner:
        def __init__(self, function, names, configs, key, do_bench=None, cache_results=True):
            self.cache = {"key": "config"}
            made.append((configs, do_bench, cache_results))

    monkeypatch.setitem(sys.modules, "triton.runtime.autotuner", SimpleNamespace(Autotuner=Autotuner))
    candidates = [SimpleNamespace(block=b, num_warps=w, num_stages=s) for b in (16, 32, 64) for w in (1, 2, 4, 8) for s in (2, 3, 4)]
    forget = tuning.tune_briefly(2, "bench")
    tuner = Autotuner(None, [], candidates, [])
    forget()
    assert made == [([x for x in candidates if (x.num_warps, x.num_stages) == (4, 3) and x.block != 32], "bench", False)] and not tuner.cache
    assert [(x.num_warps, x.num_stages) for x in tuning.choose(candidates[:12], 3)] == [(4, 3), (4, 2), (4, 4)]
    assert tuning.choose(candidates[:1], 5) == candidates[:1]


def test_errors(tmp_path):
    Path("other.json").write_text("{}")
    write_sweep((8, "g", False))
    for name, words in (("missing.json", "missing.json cannot be read"), ("other.json", "other.json cannot be read")):
        result = subprocess.run([sys.executable, BENCHMARKS / "sweep_fla.py", name], capture_output=True, text=True)
        assert result.returncode == 1 and words in result.stderr and result.stderr.count("\n") == 1 and result.stdout == ""
    if importlib.util.find_spec("torch") is None:
        result = subprocess.run([sys.executable, BENCHMARKS / "sweep_fla.py", "sweep.json"], capture_output=True, text=True)
        assert result.stderr == "sweep_fla.py: fla is not measured, torch is not installed\n" and result.returncode == 1

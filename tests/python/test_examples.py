"""train_lm: the Python and the C++ program give the same losses and read each other's checkpoints. And recall is learned."""

import csv
import json
import os
import re
import resource
import signal
import subprocess

import pytest

import glade
from programs import ROOT, call, cpp, refused, start, wait_until
from programs import python as python_program

OPTIONS = "--hidden 32 --layers 2 --heads 2 --seq-len 32 --batch 4 --lr 0.003 --warmup 2 --eval-every 4".split()
ON_CPU = [*OPTIONS, "--device", "cpu"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"{i} squared is {i * i}. " for i in range(500)))
    return path


def run(program, text, log, *options, device="cpu"):
    call([*program, "--data", text, "--log", log, *OPTIONS, "--device", device, *options], log.parent)
    with open(log) as file:
        return [float(row["loss"]) for row in csv.DictReader(file) if row["loss"]]


def python():
    return python_program("train_lm")


@pytest.mark.parametrize("model", ["gla", "lightning"])
def test_same_losses_as_in_cpp(model, text, tmp_path):
    program = cpp("train_lm")
    first = run(python(), text, tmp_path / "first.csv", "--steps", "8", "--model", model, "--save", tmp_path / "first.h5")
    second = run(python(), text, tmp_path / "second.csv", "--steps", "8", "--model", model)
    theirs = run(program, text, tmp_path / "cpp.csv", "--steps", "8", "--model", model, "--save", tmp_path / "cpp.h5")
    assert first == second
    assert first == pytest.approx(theirs, abs=1e-6)
    states = [glade.load(tmp_path / name).model for name in ("first.h5", "cpp.h5")]
    assert all(states[0][name].tolist() == states[1][name].tolist() for name in states[0])
    # Also those of earlier versions and other machines, whose sums of float32 numbers may have another order.
    assert first == pytest.approx(json.loads((ROOT / "tests" / "data" / "train_lm_losses.json").read_text())[model], rel=1e-4)


def test_resuming_a_checkpoint_of_the_other_program(text, tmp_path):
    program = cpp("train_lm")
    whole = run(python(), text, tmp_path / "whole.csv", "--steps", "8")
    for first, second in ((program, python()), (python(), program)):
        run(first, text, tmp_path / "half.csv", "--steps", "8", "--stop-at", "4", "--save", tmp_path / "half.h5")
        (tmp_path / "rest.csv").unlink(missing_ok=True)
        rest = run(second, text, tmp_path / "rest.csv", "--steps", "8", "--resume", tmp_path / "half.h5")
        assert rest == pytest.approx(whole[4:], abs=1e-6)


def test_going_on_as_if_never_stopped(text, tmp_path):
    """Exactly, model, optimiser, schedule and order of the data; also from a checkpoint of the seed, not that of the options."""
    program, steps = python(), ("--steps", "12", "--model", "gla")
    whole = run(program, text, tmp_path / "whole.csv", *steps, "--save", tmp_path / "whole.h5", "--seed", "3")
    parts = ("--save", tmp_path / "parts.h5", "--keep", "2", "--resume", "auto")
    run(program, text, tmp_path / "parts.csv", *steps, *parts, "--seed", "3", "--stop-at", "1")
    run(program, text, tmp_path / "parts.csv", *steps, *parts, "--stop-at", "9", "--save-every", "3")
    assert sorted(file.name for file in tmp_path.glob("parts-*")) == ["parts-00000006.h5", "parts-00000009.h5"]
    assert run(program, text, tmp_path / "parts.csv", *steps, *parts) == whole
    first, second = (glade.load(tmp_path / name) for name in ("whole.h5", "parts-00000012.h5"))
    assert (first.step, first.random, first.config) == (second.step, second.random, second.config)
    for part in ("model", "optimizer", "scheduler", "data"):
        a, b = getattr(first, part), getattr(second, part)
        assert {name: x.tolist() for name, x in a.items()} == {name: x.tolist() for name, x in b.items()}


def test_resuming_from_the_newest_good_checkpoint(text, tmp_path):
    options = ("--save", tmp_path / "model.h5", "--keep", "2", "--resume", "auto")
    run(python(), text, tmp_path / "log.csv", "--steps", "4", "--save-every", "2", *options)
    os.truncate(tmp_path / "model-00000004.h5", 5000)
    result = call([*python(), "--data", text, *ON_CPU, "--steps", "6", *options], tmp_path, stderr=subprocess.STDOUT)
    assert "passing over a damaged checkpoint" in result and "model-00000004.h5: truncated" in result
    assert "resuming from " in result and "model-00000002.h5 after step 2\n" in result
    assert (tmp_path / "model-00000006.h5").exists()


def test_interrupts_save_whole_steps(text, tmp_path):
    """A run that is interrupted anywhere goes on to the same losses."""
    whole = run(python(), text, tmp_path / "whole.csv", "--steps", "60")
    command = [*python(), "--data", text, *ON_CPU, "--steps", "60", "--log", "log.csv", "--save", "model.h5"]
    program = start(command, tmp_path)
    wait_until(lambda: (tmp_path / "log.csv").exists() and len((tmp_path / "log.csv").read_text().splitlines()) > 5)
    program.send_signal(signal.SIGINT)
    output = program.communicate(timeout=60)[0]
    assert program.returncode == 130 and "interrupted after step" in output
    assert run(python(), text, tmp_path / "log.csv", "--steps", "60", "--resume", tmp_path / "model.h5") == whole


def refuse(text, folder, *options):
    return refused([*python(), "--data", text, *ON_CPU, *options], folder)


def test_bad_options(text, tmp_path):
    before = text.read_bytes()
    for options, message in [
        (["--resume", "auto"], "--resume auto needs --save"),
        (["--save-every", "2"], "--save-every needs --save"),
        (["--keep", "2"], "--keep needs --save"),
        (["--save", ""], "--save: an empty file name"),
        (["--seed", "-1"], "--seed: -1, expected a whole number from 0 to 2^64 - 1"),
        (["--seed", str(2**64)], f"--seed: {2**64}, expected a whole number from 0 to 2^64 - 1"),
        (["--save", "m.h5", "--log", "./m.h5"], "--save m.h5: that is a file of --log"),
        (["--save", "m.h5", "--log", "m.h5.tmp"], "--save m.h5: this file and that of --log collide: one is the temporary file of the other"),
        (["--log", "new", "--plot", "new"], "--plot new: that is a file of --log"),
        (["--log", "new", "new"], "--log new: that is a file of --log"),
        (["--log", "m.h5", "--resume", "m.h5"], "--log m.h5: that is a file of --resume"),
        (["--profile", "p.json", "--steps", "5"], "--profile begins after 5 steps: --steps 5 is too few"),
        (["--steps", "5", "--minutes", "5"], "--minutes: not allowed with argument --steps"),
        (["--save", "model.h5", "--keep", "-1"], "--keep: -1, expected a whole number of at least 0"),
        (["--batch", "0"], "--batch: 0, expected a whole number from 1 to 2^40"),
        (["--batch", "9" * 400], "expected a whole number from 1 to 2^40"),
        (["--lr", "nan"], "--lr: nan, expected a number of at least 0"),
        (["--steps", "many"], "--steps: many, expected a whole number from 1 to 2^40"),
        (["--save", "nowhere/model.h5"], "--save nowhere/model.h5: there is no folder nowhere"),
        (["--plot", "nowhere/curves.png"], "there is no folder nowhere"),
        (["--log", str(text)], "that is a file of --data"),
    ]:
        code, line = refuse(text, tmp_path, *options)
        assert code == 2 and line.startswith("train_lm.py: ") and message in line
    assert refuse(text, tmp_path, "--resume", "missing.h5") == (1, "train_lm.py: missing.h5: cannot be opened: No such file or directory")
    assert refuse(text, tmp_path, "--save", ".") == (1, "train_lm.py: .: cannot be written: Is a directory")
    assert refuse(text, tmp_path, "--seq-len", "9999")[1].endswith("too few for sequences of 9999 bytes")
    assert text.read_bytes() == before


def test_a_loss_that_is_no_number_leaves_the_last_good_checkpoint(text, tmp_path):
    run(python(), text, tmp_path / "log.csv", "--steps", "2", "--save", "model.h5", "--eval-every", "0")
    before = (tmp_path / "model.h5").read_bytes()
    code, line = refuse(text, tmp_path, "--steps", "20", "--lr", "1e30", "--save", "model.h5")
    assert code == 1 and re.fullmatch(r"train_lm.py: the loss of step \d+ is nan: try a smaller --lr", line)
    assert (tmp_path / "model.h5").read_bytes() == before


def test_packed_accumulated_batches_as_in_cpp(text, tmp_path):
    program, converter = cpp("train_lm"), cpp("tokenize")
    call([*converter, "--separator", ". ", "--output", tmp_path / "text.bin", text], tmp_path)
    options = ["--steps", "8", "--packed"]
    first = run(python(), tmp_path / "text.bin", tmp_path / "first.csv", *options, "--accumulate", "2")
    theirs = run(program, tmp_path / "text.bin", tmp_path / "cpp.csv", *options, "--accumulate", "2")
    large = run(python(), tmp_path / "text.bin", tmp_path / "large.csv", *options, "--batch", "8")
    assert first == pytest.approx(theirs, abs=1e-6)
    assert first == pytest.approx(large, abs=1e-4)


@pytest.mark.skipif(not glade.cuda.is_available(), reason="there is no GPU")
def test_graphs_on_cuda(text, tmp_path):
    """Steps that are captured in graphs give the losses of eager ones, and those of the program in C++."""
    options = ["--steps", "12", "--accumulate", "2"]
    graphed = run(python(), text, tmp_path / "graphed.csv", *options, device="cuda")
    assert graphed == run(python(), text, tmp_path / "eager.csv", *options, "--eager", device="cuda")
    assert graphed == pytest.approx(run(python(), text, tmp_path / "recompute.csv", *options, "--recompute", device="cuda"), abs=1e-6)
    assert graphed == pytest.approx(run(cpp("train_lm"), text, tmp_path / "cpp.csv", *options, device="cuda"), abs=1e-6)


def test_recomputing_changes_no_loss(text, tmp_path):
    whole = run(python(), text, tmp_path / "whole.csv", "--steps", "4")
    assert run(python(), text, tmp_path / "recompute.csv", "--steps", "4", "--recompute", "--eager") == whole


def test_training_for_some_time(text, tmp_path):
    """The learning rate follows the time, down to a tenth of the highest."""
    output = call([*python(), "--data", text, *ON_CPU, "--minutes", "0.03", "--eval-every", "0", "--log", "log.csv"], tmp_path)
    assert 1.5 < float(re.search(r"finished after step \d+, ([\d.]+) s", output)[1]) < 60
    with open(tmp_path / "log.csv") as file:
        rates = [float(row["learning_rate"]) for row in csv.DictReader(file) if row["learning_rate"]]
    assert len(rates) > 3 and max(rates) == 0.003 and rates[-1] < 0.002


def test_profile(text, tmp_path):
    for steps, recorded in ((20, 10), (8, 3)):
        options = ["--data", text, "--device", "cpu", "--steps", str(steps), "--profile", "trace.json"]
        output = call([*python(), *options], tmp_path)
        assert f"where the time of {recorded} steps went" in output
        names = [event["name"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]]
        assert [names.count(name) for name in ("data", "forward", "backward", "optimizer")] == [recorded] * 4
        assert names.count("layers.0") == recorded


def test_a_profile_that_cannot_be_written(text, tmp_path):
    options = ["--data", text, "--device", "cpu", "--steps", "20", "--profile", "trace.json"]
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # noqa: E731
    output = call([*python(), *options], tmp_path, preexec_fn=limit)
    assert "\ncannot write trace.json: File too large\n" in output and "finished after step 20" in output
    (tmp_path / "trace.json").unlink()
    (tmp_path / "trace.json").mkdir()
    assert refused([*python(), *options], tmp_path) == (1, "train_lm.py: trace.json: Is a directory")


def test_plot(text, tmp_path):
    pytest.importorskip("matplotlib")
    run(python(), text, tmp_path / "log.csv", "--steps", "3", "--plot", tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    message = "--plot curves.txt: expected a name that ends in .png, .svg, .pdf or the like"
    assert refuse(text, tmp_path, "--plot", "curves.txt") == (2, f"train_lm.py: {message}")
    recall = refused([*python_program("associative_recall"), "--plot", "curves.txt"], tmp_path)
    assert recall == (2, f"associative_recall.py: {message}")


@pytest.mark.parametrize("model", ["gla", "lightning", "softmax"])
def test_associative_recall(model, tmp_path):
    """Less of it than by default, as far as one pair of every sequence must be held."""
    options = "--pairs 1 2 --seq-len 8 --hidden 32 --steps 250 --batch 32 --lr 0.01".split()
    output = call([*python_program("associative_recall"), "--models", model, "--device", "cpu", *options], tmp_path)
    assert float(re.search(r"accuracy 1 pairs ([\d.]+)%", output)[1]) > 95

"""train_lm goes on with what a run was made with, in both languages, and saves whatever happens to its terminal or the disk."""

import csv
import json
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import zlib

import numpy as np
import pytest

import glade
from glade import inspect
from programs import call, cpp, environment, python, refused, start, wait_until

SMALL = "--data text.txt --layers 1 --hidden 32 --heads 2 --seq-len 32 --batch 4 --warmup 5 --device cpu".split()
RESUME = "--data text.txt --device cpu --resume".split()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with text.txt, other.txt and model.h5 of a run of 4 steps."""
    folder = tmp_path_factory.mktemp("trained")
    lines = [f"Line {i}: the quick brown fox jumps over {i * i} lazy dogs.\n" for i in range(200)]
    (folder / "text.txt").write_text("".join(lines))
    (folder / "other.txt").write_text("".join(lines[:100] + [lines[100].replace("lazy", "busy")] + lines[101:]))
    call([*python("train_lm"), *SMALL, "--accumulate", "2", "--steps", "4", "--seed", "7", "--save", "model.h5"], folder)
    return folder


@pytest.fixture
def folder(trained, tmp_path):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_settings_in_the_checkpoint(folder):
    found = {name.removeprefix("run."): x for name, x in glade.load(folder / "model.h5").data.items() if name.startswith("run.")}
    tokens = np.frombuffer((folder / "text.txt").read_bytes(), np.uint8).astype("<i8")
    expected = dict(seq_len=32, batch=4, accumulate=2, packed=0, seed=7, steps=4, warmup=5, schedule=0, data_tokens=len(tokens))
    expected |= dict(minutes=0.0, lr=0.004, weight_decay=0.1, grad_clip=1.0, data_crc32=zlib.crc32(tokens.tobytes()))
    assert {name: x.item() for name, x in found.items()} == expected
    assert {name for name, x in found.items() if x.dtype == glade.float64} == {"minutes", "lr", "weight_decay", "grad_clip"}
    assert all(x.dtype in (glade.int64, glade.float64) and x.shape == () for x in found.values())


def test_absent_options_come_from_the_checkpoint(folder):
    """And either program goes on with a run of the other, to the same bits."""
    run = [*SMALL, "--accumulate", "2", "--steps", "12", "--seed", str(2**64 - 1), "--lr", "0.002", "--grad-clip", "0.5"]
    call([*python("train_lm"), *run, "--save", "whole.h5"], folder)
    call([*python("train_lm"), *run, "--save", "half.h5", "--stop-at", "6"], folder)
    output = call([*python("train_lm"), *RESUME, "half.h5", "--save", "rest.h5"], folder, stderr=subprocess.STDOUT)
    assert "goes on with" not in output
    assert inspect.differences(folder / "whole.h5", folder / "rest.h5") == []

    call([*cpp("train_lm"), *run, "--save", "cpp.h5", "--stop-at", "6"], folder)
    assert inspect.differences(folder / "half.h5", folder / "cpp.h5") == []
    call([*python("train_lm"), *RESUME, "cpp.h5", "--save", "cpp-python.h5"], folder)
    call([*cpp("train_lm"), *RESUME, "half.h5", "--save", "python-cpp.h5"], folder)
    for name in ("cpp-python.h5", "python-cpp.h5"):
        assert inspect.differences(folder / "whole.h5", folder / name) == []


def test_short_convolutions(folder):
    """The same models in both languages, which a run that goes on keeps."""
    run = [*SMALL, "--steps", "4", "--short-conv", "3"]
    for program, name in ((python, "python.h5"), (cpp, "cpp.h5")):
        call([*program("train_lm"), *run, "--save", name], folder)
        call([*program("train_lm"), *RESUME, name, "--save", name, "--steps", "5"], folder)
        line = refused([*program("train_lm"), *SMALL, "--model", "lightning", "--short-conv", "4"], folder)
        assert line == (2, f"{'train_lm.py' if program is python else 'train_lm'}: --short-conv is for --model gla")
        line = refused([*program("train_lm"), *RESUME, name, "--short-conv", "0"], folder)[1]
        assert line.endswith(f"{name}: the run was made with --short-conv 3, not 0")
    assert inspect.differences(folder / "python.h5", folder / "cpp.h5") == []
    config = glade.load(folder / "cpp.h5").config
    assert (config["use_short_conv"], config["conv_size"]) == (True, 3)


def test_schedules(folder):
    """Both languages, and a run that was interrupted, follow the same; with the time as with the steps."""
    for program in (python, cpp):
        command = [*program("train_lm"), *SMALL, "--steps", "20", "--schedule", "wsd", "--lr", "0.01"]
        call([*command, "--log", "wsd.csv", "--save", "wsd.h5", "--stop-at", "15"], folder)
        call([*program("train_lm"), *RESUME, "wsd.h5", "--log", "wsd.csv"], folder)
        with open(folder / "wsd.csv") as file:
            rates = [float(row["learning_rate"]) for row in csv.DictReader(file) if row["loss"]]
        assert rates == pytest.approx([0.002, 0.004, 0.006, 0.008, *[0.01] * 13, 0.0075, 0.005, 0.0025])
        call([*program("train_lm"), *SMALL, "--minutes", "0.02", "--schedule", "wsd", "--log", "minutes.csv"], folder)
        with open(folder / "minutes.csv") as file:
            rates = [float(row["learning_rate"]) for row in csv.DictReader(file) if row["loss"]]
        assert max(rates) == 0.004 and rates[len(rates) // 2] == 0.004 and rates[-1] < 0.004
    code, line = refused([*python("train_lm"), *SMALL, "--schedule", "linear"], folder)
    assert code == 2 and line.startswith("train_lm.py: --schedule: invalid choice: 'linear'")


def test_minutes_count_what_was_before(folder):
    """The learning rate and the end follow the time of all processes; checkpoints of earlier versions have none."""
    for program in (python, cpp):
        call([*program("train_lm"), *SMALL, "--minutes", "0.2", "--stop-at", "3", "--save", "half.h5"], folder)
        half = glade.CheckpointFile(folder / "half.h5")
        assert half.data["run.seconds"].dtype == glade.float64 and 0 < half.data["run.seconds"].item() < 12
        model = glade.nn.models.from_checkpoint(half.load())
        optimizer = glade.optim.AdamW(glade.optim.decay_matrices(model.named_parameters(), 0.1), lr=0.004, betas=(0.9, 0.95))
        scheduler = glade.optim.LRScheduler(optimizer, glade.optim.warmup_cosine_lr(4, 4))
        half.restore(model, optimizer, scheduler)
        data = half.data | {"run.seconds": glade.tensor(11.9, dtype=glade.float64)}
        glade.save(model, folder / "late.h5", optimizer=optimizer, scheduler=scheduler, step=half.step, data=data)
        output = call([*program("train_lm"), *RESUME, "late.h5", "--warmup", "0", "--log", "late.csv", "--save", "end.h5"], folder)
        assert float(re.search(r"finished after step \d+, ([\d.]+) s", output)[1]) < 6
        with open(folder / "late.csv") as file:
            assert all(float(row["learning_rate"]) < 0.001 for row in csv.DictReader(file) if row["loss"])
        assert glade.CheckpointFile(folder / "end.h5").data["run.seconds"].item() >= 12
        data.pop("run.seconds")
        glade.save(model, folder / "old.h5", optimizer=optimizer, scheduler=scheduler, step=half.step, data=data)
        output = call([*program("train_lm"), *RESUME, "old.h5", "--stop-at", "5"], folder)
        assert "finished after step 5" in output


REFUSED = [
    (["--model", "lightning"], "--model gla, not lightning"),
    (["--layers", "2"], "--layers 1, not 2"),
    (["--hidden", "64"], "--hidden 32, not 64"),
    (["--heads", "4"], "--heads 2, not 4"),
    (["--short-conv", "0"], "--short-conv 4, not 0"),
    (["--dtype", "bfloat16"], "--dtype float32, not bfloat16"),
    (["--seq-len", "33"], "--seq-len 32, not 33"),
    (["--batch", "5"], "--batch 4, not 5"),
    (["--accumulate", "1"], "--accumulate 2, not 1"),
    (["--seed", str(2**64 - 1)], f"--seed 7, not {2**64 - 1}"),
    (["--packed"], "--packed 0, not 1"),
]


def test_another_run_is_refused_by_name(folder):
    before = (folder / "model.h5").read_bytes()
    for options, difference in REFUSED:
        line = refused([*python("train_lm"), *RESUME, "model.h5", "--save", "model.h5", *options], folder)
        assert line == (1, f"train_lm.py: model.h5: the run was made with {difference}")
    code, line = refused([*python("train_lm"), "--data", "other.txt", "--device", "cpu", "--resume", "model.h5"], folder)
    size = len((folder / "text.txt").read_bytes())
    assert code == 1 and line.startswith(f"train_lm.py: model.h5: the run was made with other --data: {size} tokens with the checksum ")
    theirs = refused([*cpp("train_lm"), "--data", "other.txt", "--device", "cpu", "--resume", "model.h5"], folder)
    assert theirs[1] == line.replace("train_lm.py", "train_lm")
    assert (folder / "model.h5").read_bytes() == before


def test_sizes_beyond_the_checkpoint_are_refused_before_the_model_is_made(folder):
    model = glade.load(folder / "model.h5")
    glade.save(model.model, folder / "large.h5", config=json.dumps({**model.config, "hidden_size": 2**24}), data=model.data)
    for program in (python, cpp):
        code, line = refused([*program("train_lm"), *RESUME, "large.h5"], folder)
        assert code == 1 and line.endswith(": large.h5: model.embeddings.weight is [256, 32], but the config says [256, 16777216]")


def test_another_schedule_is_a_warning(folder):
    for options, before, now in [
        ("--steps 6", "--steps 4", "--steps 6"),
        ("--minutes 0.5", "--minutes 0", "--minutes 0.5"),
        (
            "--steps 6 --lr 0.001 --warmup 2 --weight-decay 0 --grad-clip 2 --schedule wsd",
            "--steps 4, --lr 0.004, --warmup 5, --weight-decay 0.1, --grad-clip 1, --schedule cosine",
            "--steps 6, --lr 0.001, --warmup 2, --weight-decay 0, --grad-clip 2, --schedule wsd",
        ),
    ]:
        command = [*python("train_lm"), *RESUME, "model.h5", "--stop-at", "5", *options.split()]
        result = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300)
        warning = f"model.h5: the run was made with {before} and goes on with {now}\n"
        assert (result.returncode, result.stderr) == (0, f"train_lm.py: {warning}")
    same = subprocess.run([*python("train_lm"), *RESUME, "model.h5", "--steps", "4"], cwd=folder, env=environment(), capture_output=True, text=True)
    assert (same.returncode, same.stderr) == (0, "")


def test_checkpoints_of_earlier_versions(folder):
    """They hold no settings: what the options say is believed."""
    old = glade.CheckpointFile(folder / "model.h5")
    model = glade.nn.models.from_checkpoint(old.load())
    optimizer = glade.optim.AdamW(glade.optim.decay_matrices(model.named_parameters(), 0.1), lr=0.004, betas=(0.9, 0.95))
    scheduler = glade.optim.LRScheduler(optimizer, glade.optim.warmup_cosine_lr(4, 4))
    old.restore(model, optimizer, scheduler)
    data = {name: x for name, x in old.data.items() if not name.startswith("run.")}
    glade.save(model, folder / "old.h5", optimizer=optimizer, scheduler=scheduler, step=old.step, data=data)
    result = call([*python("train_lm"), *SMALL, "--batch", "5", "--steps", "6", "--resume", "old.h5"], folder, stderr=subprocess.STDOUT)
    assert "after step 4\n" in result and "goes on with" not in result and "finished after step 6" in result


def test_weights_that_are_no_numbers_are_not_saved(folder):
    """The last step itself can spoil them, which the losses before do not show."""
    before = (folder / "model.h5").read_bytes()
    for program in (python, cpp):
        for end in ("--steps 5", "--steps 9 --save-every 5"):
            command = [*program("train_lm"), *RESUME, "model.h5", "--save", "model.h5", "--lr", "1e38", "--weight-decay", "100", *end.split()]
            result = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300)
            assert result.returncode == 1 and result.stderr.endswith("try a smaller --lr\n")
            assert (folder / "model.h5").read_bytes() == before


def test_numbered_checkpoints_of_another_run_hide_nothing(folder):
    run = ["--data", "text.txt", "--device", "cpu", "--save", "model.h5"]
    call([*python("train_lm"), *run, "--steps", "6", "--keep", "2", "--resume", "auto"], folder)
    generate = ["--device", "cpu", "--tokens", "20", "--checkpoint"]
    texts = {call([*program("generate"), *generate, name], folder) for program in (python, cpp) for name in ("model.h5", "model-00000006.h5")}
    assert len(texts) == 1
    message = "--save model.h5: there is model-00000006.h5 of another run: give --resume auto or another name, or remove it"
    for program, name in ((python, "train_lm.py"), (cpp, "train_lm")):
        assert refused([*program("train_lm"), *run, "--steps", "3"], folder) == (2, f"{name}: {message}")


def train_for_long(folder, *options, **streams):
    command = [*python("train_lm"), *SMALL, "--steps", "100000", "--log", "log.csv", "--save", "run.h5", *options]
    process = start(command, folder, **streams)
    wait_until(lambda: (folder / "log.csv").exists() and len((folder / "log.csv").read_text().splitlines()) > 2)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_save(number, folder, heard_signals):
    process = train_for_long(folder)
    process.send_signal(number)
    try:
        output = process.communicate(timeout=60)[0]
    finally:
        process.kill()
    assert process.returncode == 128 + number and "interrupted after step" in output
    assert inspect.damages(folder / "run.h5") == []


def test_a_terminal_that_is_closed_saves(folder, heard_signals):
    try:
        child, terminal = pty.fork()
    except OSError as error:
        pytest.skip(f"no pseudo-terminal can be made: {error}")
    if child == 0:
        os.chdir(folder)
        command = [*python("train_lm"), *SMALL, "--steps", "100000", "--log", "log.csv", "--save", "run.h5"]
        os.execve(command[0], [str(word) for word in command], environment())
    wait_until(lambda: (folder / "log.csv").exists() and len((folder / "log.csv").read_text().splitlines()) > 2)
    os.close(terminal)
    ended = []
    wait_until(lambda: ended.append(os.waitpid(child, os.WNOHANG)) or ended[-1][0] == child)
    assert os.waitstatus_to_exitcode(ended[-1][1]) == 128 + signal.SIGHUP
    assert inspect.damages(folder / "run.h5") == []


def test_nohup_goes_on(folder):
    command = ["nohup", *python("train_lm"), *SMALL, "--steps", "30", "--log", "log.csv"]
    process = start(command, folder)
    wait_until(lambda: (folder / "log.csv").exists() and len((folder / "log.csv").read_text().splitlines()) > 2)
    process.send_signal(signal.SIGHUP)
    assert "finished after step 30" in process.communicate(timeout=120)[0] and process.returncode == 0


def test_a_full_disk_does_not_end_the_training(folder):
    """No file may grow over 20 KiB, as on a full disk, until the limit is lifted."""
    options = ["--steps", "300", "--eval-every", "0", "--save", "run.h5", "--save-every", "5"]
    with open(folder / "out.txt", "w") as out:
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20480, resource.RLIM_INFINITY))  # noqa: E731
        process = start([*python("train_lm"), *SMALL, *options], folder, stdout=out, preexec_fn=limit)
        wait_until(lambda: "not saved" in (folder / "out.txt").read_text() or process.poll() is not None)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        code = process.wait(timeout=120)
    output = (folder / "out.txt").read_text()
    assert code == 0 and "not saved, and tried again at the next save: run.h5: " in output, output
    assert glade.load(folder / "run.h5").step == 300


def test_a_disk_that_stays_full_is_an_error_in_the_end(folder):
    (folder / "log.csv").write_text(" " * 20000 + "\n")
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20480, 20480))  # noqa: E731
    command = [*python("train_lm"), *SMALL, "--steps", "8", "--save-every", "2"]
    process = start([*command, "--save", "run.h5"], folder, preexec_fn=limit)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 1 and output.count("not saved") >= 1 and "step 8: validation" in output
    assert output.splitlines()[-1].startswith("train_lm.py: run.h5: ")

    process = start([*python("train_lm"), *RESUME, "model.h5", "--steps", "60", "--log", "log.csv"], folder, preexec_fn=limit)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 1 and "step 60: validation" in output
    assert output.count("cannot write log.csv: File too large; its rows are kept, and written as soon as they can be") == 1
    assert output.splitlines()[-1] == "train_lm.py: cannot write log.csv: File too large"


def test_inspect_verifies(folder):
    assert inspect.damages(folder / "model.h5") == []
    data = bytearray((folder / "model.h5").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "damaged.h5").write_bytes(data)
    command = [python("x")[0], "-m", "glade.inspect"]
    whole = call([*command, "model.h5", "--verify"], folder)
    assert whole.startswith("model.h5: all ") and whole.endswith(" bytes, are undamaged\n")
    assert whole == call([*cpp("inspect_checkpoint"), "model.h5", "--verify"], folder)
    results = [
        subprocess.run([*program, "damaged.h5", "--verify"], cwd=folder, env=environment(), capture_output=True, text=True)
        for program in (command, cpp("inspect_checkpoint"))
    ]
    assert results[0].returncode == results[1].returncode == 1
    assert results[0].stdout == results[1].stdout and "checksum" in results[0].stdout

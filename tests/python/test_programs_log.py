"""What train_lm.py records: CSV with the columns of the program in C++, and TensorBoard's event files."""

import csv
import struct

import pytest

from programs import call, cpp, python, refused, without

OPTIONS = "--data text.txt --hidden 32 --layers 2 --heads 2 --seq-len 32 --batch 4 --eval-every 4 --device cpu".split()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "text.txt").write_text("".join(f"{i} squared is {i * i}. " for i in range(500)))
    return tmp_path


def rows(path):
    with open(path) as file:
        return list(csv.DictReader(file))


def test_a_log_goes_on_from_its_checkpoint(folder):
    run = ["train_lm", *OPTIONS, "--steps", "6"]
    for program in (python, cpp):
        command = [*program(run[0]), *run[1:]]
        call([*command, "--stop-at", "3", "--save", "half.h5", "--log", "log.csv"], folder)
        before = (folder / "log.csv").read_text()
        (folder / "log.csv").write_text(before + "4,5.5,7.9,,0.004,9,1\n5,5.4,7.8,,0.0")  # as of a run that was killed
        call([*command, "--resume", "half.h5", "--log", "log.csv"], folder)
        assert (folder / "log.csv").read_text().startswith(before)
        assert [int(row["step"]) for row in rows(folder / "log.csv")] == [1, 2, 3, 3, 4, 4, 5, 6, 6]
        assert all(row["seconds"] for row in rows(folder / "log.csv"))
        assert rows(folder / "log.csv")[4]["loss"] != "5.5"


def scalars(folder):
    """{(name, step): value} of all event files. A record: length, its checksum, that many bytes, their checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + length])
            at += length + 16
            for value in event.summary.value:
                found[value.tag, event.step] = value.simple_value
    return found


def test_the_same_csv_as_in_cpp(folder):
    for program, log in ((python("train_lm"), "python.csv"), (cpp("train_lm"), "cpp.csv")):
        call([*program, *OPTIONS, "--steps", "6", "--log", log], folder)
    ours, theirs = rows(folder / "python.csv"), rows(folder / "cpp.csv")
    assert list(ours[0]) == list(theirs[0]) and len(ours) == len(theirs) == 8
    for a, b in zip(ours, theirs):
        assert {name for name in a if a[name]} == {name for name in b if b[name]}
        assert (a["step"], a["learning_rate"]) == (b["step"], b["learning_rate"])
        for name in ("loss", "bits_per_byte", "validation_bits_per_byte"):
            assert (a[name] and float(a[name])) == pytest.approx(b[name] and float(b[name]), abs=2e-6)


def test_tensorboard_holds_what_the_csv_file_holds(folder):
    pytest.importorskip("tensorboardX")
    call([*python("train_lm"), *OPTIONS, "--steps", "6", "--stop-at", "4", "--log", "log.csv", "runs/", "--save", "m.h5"], folder)
    call([*python("train_lm"), *OPTIONS, "--steps", "6", "--log", "log.csv", "runs", "--resume", "m.h5"], folder)
    assert len(list((folder / "runs").iterdir())) == 2
    found = scalars(folder / "runs")
    expected = {(name, int(row["step"])): float(value) for row in rows(folder / "log.csv") for name, value in row.items() if value and name != "step"}
    assert found.keys() == expected.keys() and ("validation_bits_per_byte", 6) in found
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-5, abs=1 if key[0] == "tokens_per_second" else 1e-3 if key[0] == "seconds" else 1e-6)


def test_missing_packages_are_named(folder):
    """Before the training."""
    for options, message in ((["--log", "runs/"], "--log for TensorBoard needs the package tensorboardX"), (["--plot", "a.png"], "--plot needs the package matplotlib")):
        package = message.split()[-1]
        assert refused(without([package], "train_lm", *OPTIONS, *options), folder) == (2, f"train_lm.py: {message}: pip install {package}")

"""What programs show on a terminal: one line of progress that fits its width and is gone in the end; elsewhere plain lines."""

import os
import re
import time

import pytest

import glade
from glade.progress import Progress
from programs import call, cpp, open_terminal, python, read_terminal, refused, run_in_terminal, screen

TRAIN = "--data text.txt --hidden 32 --layers 2 --heads 2 --seq-len 32 --batch 4 --steps 6 --eval-every 3 --device cpu".split()
RECALL = "--models gla --pairs 1 --seq-len 8 --hidden 32 --steps 10 --device cpu".split()
PROGRAMS = {
    "train_lm.py": lambda: [*python("train_lm"), *TRAIN],
    "train_lm": lambda: [*cpp("train_lm"), *TRAIN],
    "glade.tokenize": lambda: [*python("x")[:1], "-m", "glade.tokenize", "--output", "text.bin", "text.txt"],
    "associative_recall.py": lambda: [*python("associative_recall"), *RECALL],
}
WIDTHS = [40, 80, 200, 0]  # 0: the terminal does not know


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "text.txt").write_text("".join(f"{i} squared is {i * i}. " for i in range(500)))
    return tmp_path


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_program_in_a_terminal(program, width, folder):
    output = run_in_terminal(PROGRAMS[program](), folder, width).replace("\r\n", "\n")
    columns = width or 80
    redrawn = re.findall(r"(?:\x1b\[K|^)(\[[^\r\n]*)", output, re.MULTILINE)
    assert redrawn and all(re.match(r"\[[#.]{6,24}\]", line) and len(line) < columns for line in redrawn)
    assert all(re.search(r"step \d+|of 0.00 GB", line) for line in redrawn)
    if columns >= 80 and program.startswith("train_lm"):
        assert any("left" in line for line in redrawn)
    shown = "\n".join(screen(output, 1000))
    assert "[" not in shown and "\x1b" not in shown and shown.endswith("\n")
    if program.startswith("train_lm"):  # nothing but the messages stays; the last validation is there once
        assert re.findall(r"^step (\d+): validation", shown, re.MULTILINE) == ["3", "6"]
        assert re.fullmatch(r"finished after step 6, [\d.]+ s", shown.splitlines()[-1])
    narrow = screen(output, columns)
    assert sum(len(line) > 0 for line in narrow) == sum(-(-len(line) // columns) for line in shown.splitlines())


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_without_a_terminal(program, folder):
    output = call(PROGRAMS[program](), folder)
    assert "\r" not in output and "\x1b" not in output and "[" not in output
    if program.startswith("train_lm"):
        assert len(re.findall("^step 6: validation", output, re.MULTILINE)) == 1


def draw(width, *calls):
    """What a Progress writes to a terminal of this width."""
    ours, theirs = open_terminal(width)
    with open(theirs, "w") as file:
        with Progress(file) as progress:
            for share, *fields in calls:
                progress.show(share, *fields, now=True)
    return read_terminal(ours)


def test_wide_characters_and_names_that_move_the_cursor():
    assert screen(draw(40, (0.5, "語" * 14, "second")), 40) == [""]
    (line,) = re.findall(r"\x1b\[K(\[.+)\r", draw(40, (0.5, "語" * 13, "second")))
    assert line == "[####.....]  " + "語" * 13
    (line,) = re.findall(r"\x1b\[K(\[.+)\r", draw(40, (0.5, "a\n\x1b[2Jb")))
    assert line == "[############............]  a??[2Jb"


def test_generated_text_does_not_move_the_cursor(folder):
    glade.save(glade.nn.models.GLAForCausalLM(hidden_size=32, num_hidden_layers=1, num_heads=2), folder / "model.h5")
    options = ["--checkpoint", "model.h5", "--device", "cpu", "--tokens", "0", "--prompt", "a\x1b[2Jb\x9bc\n\td"]
    for program in (cpp, python):
        assert run_in_terminal([*program("generate"), *options], folder, 80) == "a?[2Jb?c\r\n\td\r\n"
        assert call([*program("generate"), *options], folder) == "a\x1b[2Jb\x9bc\n\td\n"  # elsewhere as it is
        line = refused([*program("generate"), *options[2:], "--checkpoint", "x\x1b[2J.h5"], folder)[1]
        assert "x?[2J.h5" in line


def test_tiny_terminals():
    for width in range(1, 14):
        assert screen(draw(width, (0.0, "step 1"), (1.0, "step 2")), width) == [""]


def test_plain_lines_at_intervals(tmp_path):
    with open(tmp_path / "a", "w") as file, Progress(file, interval=0.2) as progress:
        begin = time.monotonic()
        while time.monotonic() - begin < 0.5:
            progress.show(0.25, "step 1")
        progress.show(1, "step 2", now=True)
    *lines, last = (tmp_path / "a").read_text().splitlines()
    assert set(lines) == {" 25%  step 1"} and len(lines) <= 2 and last == "100%  step 2  0:00 left"


def test_a_terminal_that_is_gone_ends_nothing():
    ours, theirs = open_terminal(80)
    file = open(theirs, "w")
    os.close(ours)
    with Progress(file) as progress:
        progress.show(0.5, "step 1")
        progress.print("message")

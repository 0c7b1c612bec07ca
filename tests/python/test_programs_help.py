"""--help is whole, and says the same in both languages."""

import re
import sys

import pytest

from programs import call, cpp, python

# Plots and TensorBoard are for Python only.
DIFFERENT = {"--help", "--plot", "--log"}


def options(help_text):
    """{option: what it is} of a help text, in the order of their names."""
    found = {}
    for line in help_text.splitlines():
        if start := re.match(r"  (?:-h, ?)?(--[a-z-]+)((?: \S+)*)(?:  +(.*))?$", line):
            name = start[1]
            found[name] = [start[3] or ""]
        elif found and line.startswith("   "):
            found[name].append(line)
    return {name: " ".join(" ".join(lines).split()) for name, lines in found.items()}


@pytest.mark.parametrize("name", ["train_lm", "generate", "evaluate", "associative_recall"])
def test_every_option_is_described(name, tmp_path):
    text = call([*python(name), "--help"], tmp_path)
    found = options(text)
    assert len(found) > 8 and all(len(description) > 8 for description in found.values())
    assert not re.search(r"None|inf\b|<|\d{5}", " ".join(found.values()))
    if name == "train_lm":
        assert found["--lr"] == "Highest learning rate [0.004 on the CPU, 0.003 on CUDA]"
        assert found["--seq-len"] == "Tokens in a sequence [128 on the CPU, 256 on CUDA]"


@pytest.mark.parametrize("name", ["convert", "tokenize", "inspect_checkpoint", "../tools/glade-tune"])
def test_every_option_of_a_command_is_described(name, tmp_path):
    found = options(call([*cpp(name), "--help"], tmp_path))
    assert len(found) > 2 and all(len(description) > 8 for description in found.values())


@pytest.mark.parametrize("name", ["glade.tokenize", "glade.inspect"])
def test_every_option_of_a_module_is_described(name, tmp_path):
    found = options(call([sys.executable, "-m", name, "--help"], tmp_path))
    assert len(found) > 2 and all(len(description) > 8 for description in found.values())


@pytest.mark.parametrize("name", ["train_lm", "generate", "evaluate"])
def test_the_same_options_as_in_cpp(name, tmp_path):
    ours, theirs = (options(call([*program(name), "--help"], tmp_path)) for program in (python, cpp))
    assert {name: text for name, text in ours.items() if name not in DIFFERENT} == {name: text for name, text in theirs.items() if name not in DIFFERENT}
    assert ours.keys() - {"--plot"} == theirs.keys()

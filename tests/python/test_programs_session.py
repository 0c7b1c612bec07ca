"""The session in docs/python.md: its commands print what the guide shows, but for numbers and what a model writes."""

import re
import shlex
import signal
import time

from programs import ROOT, python, start


def commands():
    """[(command, lines that it prints)]. "^C" among the lines is Ctrl-C, typed a moment after the line before is there."""
    block = (ROOT / "docs/python.md").read_text().split("```console\n")[1].split("```")[0]
    for part in ("\n" + block).split("\n$ ")[1:]:
        command, *lines = part.replace("\\\n", " ").rstrip("\n").split("\n")
        yield command, lines


def masked(lines):
    """Without numbers, and without the lines of progress, which come every few seconds."""
    return [re.sub(r"[\d.]*\d(e-\d+)?", "0", line) for line in lines if not re.match(r" *\d+%  step", line)]


def run(command, folder, lines):
    words = shlex.split(command)
    assert words[0] == "python"
    process = start([python("x")[0], *words[1:]], folder, errors="replace")
    if "^C" not in lines:
        return process.communicate(timeout=300)[0].splitlines()
    before = [process.stdout.readline().rstrip("\n") for _ in range(lines.index("^C"))]
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    return [*before, "^C", *process.communicate(timeout=60)[0].splitlines()]


def test_session(tmp_path):
    for name in ("README.md", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    session = list(commands())
    assert len(session) >= 6
    for command, expected in session:
        output = run(command, tmp_path, expected)
        if "generate.py" in command:  # the prompt, then what the model makes of it
            prompt = shlex.split(command)[shlex.split(command).index("--prompt") + 1]
            assert "\n".join(output).startswith(prompt) and "\n".join(expected).startswith(prompt) and len("".join(output)) > len(prompt)
        else:
            assert masked(output) == masked(expected), command

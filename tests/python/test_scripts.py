"""The scripts say what they do and take, and refuse what they don't, before they do anything."""

import subprocess

import pytest

from programs import ROOT

SCRIPTS = sorted(path.name for path in (ROOT / "scripts").glob("*.sh") if path.name != "common.sh")


def run(name, *arguments, folder):
    return subprocess.run(["bash", ROOT / "scripts" / name, *arguments], cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", SCRIPTS)
def test_help(name, tmp_path):
    for option in ("--help", "-h"):
        result = run(name, option, folder=tmp_path)
        assert (result.returncode, result.stderr) == (0, "")
        if name == "train.sh" and (ROOT / "build" / "examples" / "train_lm").exists():
            assert "--lr" in result.stdout
        else:
            assert result.stdout.startswith(f"scripts/{name}") and 'source "' not in result.stdout


@pytest.mark.parametrize(
    "name, argument, words",
    [
        ("check.sh", "frmat", "there is no check 'frmat': format, lint, docs, kills, ranks, sanitize"),
        ("docs.sh", "html", "it takes no arguments, not 'html'"),
        ("format.sh", "--chek", "it takes --check or nothing, not '--chek'"),
        ("lint.sh", "--all", "it takes --changed or files, not '--all'"),
        ("setup.sh", "tests", "there is no group 'tests': train, distributed, test, check, docs"),
    ],
)
def test_wrong_arguments(name, argument, words, tmp_path):
    result = run(name, argument, folder=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", f"{name}: {words} (--help says more)\n")

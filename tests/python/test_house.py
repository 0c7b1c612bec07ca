"""Includes follow the table of folders in docs/design.md: none goes up, and programs see public headers alone."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = ["core", "autograd", "ops", "nn"]
PUBLIC = {"glade.h", *re.findall(r"^#include <glade/(.*)>$", (ROOT / "glade.h").read_text(), re.MULTILINE)}
# What the table names besides public headers.
ALSO = {"bindings": {"core/message.h", "core/scalar_range.h"}, "examples": {"core/instruction_set.h", "core/json.h"}}


def includes(folder):
    """(source, header) of glade's headers that the sources of a folder include."""
    for source in sorted((ROOT / folder).rglob("*")):
        if source.suffix in {".h", ".cpp", ".cuh", ".cu"}:
            for header in re.findall(r"^#include <glade/(.*)>$", source.read_text(), re.MULTILINE):
                yield str(source.relative_to(ROOT)), header


@pytest.mark.parametrize("folder", LAYERS)
def test_no_include_goes_up(folder):
    found = list(includes(folder))
    assert found
    above = set(LAYERS[LAYERS.index(folder) + 1 :]) | {"glade.h"}
    assert [(source, header) for source, header in found if header.split("/")[0] in above] == []


@pytest.mark.parametrize("folder", ["bindings", "examples", "tools", "benchmarks"])
def test_programs_include_public_headers(folder):
    found = list(includes(folder))
    assert found
    assert {(source, header) for source, header in found if header not in PUBLIC | ALSO.get(folder, set())} == set()

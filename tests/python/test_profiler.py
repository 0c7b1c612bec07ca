"""glade.profiler: ranges and what profiles make of them."""

import json

import pytest

import glade
from glade import profiler


def test_ranges_nest_and_traces_are_json(tmp_path, device):
    x = glade.ones(4, 4, device=device)
    with profiler.profile(tmp_path / "trace.json", device) as result, profiler.range("outer"), profiler.range("inner"):
        x @ x
    events = [(event.name, event.kind, event.depth) for event in result.profile.events]
    assert events == [("outer", "phase", 0), ("inner", "phase", 1), ("gemm", "operation", 2)]
    assert all((event.device_duration is None) == (device == "cpu") for event in result.profile.events)
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["name"] for event in trace if event["ph"] == "X" and event["pid"] == 0] == ["outer", "inner", "gemm"]
    assert "  outer " in result.profile.table()


def test_misuse():
    with pytest.raises(ValueError, match="no profile"):
        profiler.stop()
    if not glade.cuda.is_available():
        with pytest.raises(glade.DeviceError):
            glade.cuda.memory_summary()

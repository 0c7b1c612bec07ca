"""Checkpoints: saving, resuming, parts of them, and what shows them. test_checkpoint_h5py.py opens them with h5py."""

import json
import os
import re
import subprocess
import sys

import pytest

import glade
from glade import inspect, nn, optim
from programs import cpp, python, refused


MODELS = {"gla": nn.models.GLAForCausalLM, "lightning": nn.models.LightningForCausalLM}


def make(name="gla", device="cpu"):
    glade.manual_seed(1)
    model = MODELS[name](vocab_size=11, hidden_size=16, num_hidden_layers=2, num_heads=2).to(device)
    optimizer = optim.AdamW(model.named_parameters())
    return model, optimizer, optim.LRScheduler(optimizer, optim.warmup_cosine_lr(2, 10))


def train(model, optimizer, scheduler, steps):
    """Steps on random data, whose order is part of the random state."""
    losses = []
    for _ in range(steps):
        ids = (glade.rand(2, 6) * 11).long().to(next(iter(model.parameters())).device)
        loss = model.loss(ids[:, :-1], ids[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", MODELS)
def test_resuming_is_not_stopping(tmp_path, device, name):
    def save(run, path, step):
        glade.save(run[0], path, optimizer=run[1], scheduler=run[2], step=step, data={"position": glade.tensor([step])})

    whole = make(name, device)
    losses = train(*whole, 6)
    save(whole, tmp_path / "whole.h5", 6)
    for stop in (1, 3, 5):
        stopped = make(name, device)
        assert train(*stopped, stop) == losses[:stop]
        save(stopped, tmp_path / "stopped.h5", stop)
        resumed = make(name, device)
        checkpoint = glade.CheckpointFile(tmp_path / "stopped.h5")
        checkpoint.restore(*resumed)
        assert checkpoint.step == stop and checkpoint.data["position"].tolist() == [stop]
        assert train(*resumed, 6 - stop) == losses[stop:]
        save(resumed, tmp_path / "resumed.h5", 6)
        assert inspect.differences(tmp_path / "whole.h5", tmp_path / "resumed.h5") == []
        from_memory = make(name, device)
        glade.load(tmp_path / "stopped.h5").restore(*from_memory)
        assert train(*from_memory, 6 - stop) == losses[stop:]


def test_what_a_checkpoint_says(tmp_path):
    run = make()
    glade.save(run[0], tmp_path / "model.h5", step=3, compression=4)
    for checkpoint in (glade.load(tmp_path / "model.h5"), glade.CheckpointFile(tmp_path / "model.h5")):
        assert checkpoint.step == 3 and checkpoint.path == str(tmp_path / "model.h5")
        assert checkpoint.config == run[0].config and checkpoint.library_version == glade.__version__ and checkpoint.created
        assert checkpoint.random.keys() == {"default"}
    checkpoint = glade.load(str(tmp_path / "model.h5"))
    assert set(nn.models.from_checkpoint(checkpoint).state_dict()) == set(checkpoint.model)
    for dtype in (glade.bfloat16, "bfloat16"):
        assert nn.models.from_checkpoint(checkpoint, dtype=dtype).config["dtype"] == "bfloat16"


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16", "int64", "int32", "uint8", "bool"])
def test_tensors_by_name(tmp_path, dtype):
    x = glade.tensor([[0, 1, 1]], dtype=dtype)
    glade.save({"some.name": x, "other": glade.ones(1)}, tmp_path / "x.h5")
    loaded = glade.load(tmp_path / "x.h5")
    assert loaded.config is None and loaded.optimizer == {} and loaded.step == 0
    assert loaded.model["some.name"].dtype is x.dtype and loaded.model["some.name"].tolist() == x.tolist()


def test_a_module_written_in_python(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(glade.randn(3))
            self.linear = nn.Linear(3, 3)

    model, other = Model(), Model()
    glade.save(model, tmp_path / "m.h5")
    glade.load(tmp_path / "m.h5").restore(other)
    assert other.scale.tolist() == model.scale.tolist() and other.linear.weight.tolist() == model.linear.weight.tolist()


def test_saving_in_the_background(tmp_path):
    run = make()
    path = tmp_path / "m.h5"
    assert glade.open_newest_checkpoint(path) is None
    with glade.CheckpointSaver(path, keep=2) as saver:
        for step in range(1, 5):
            train(*run, 1)
            saver.check()
            saver.save(run[0], optimizer=run[1], scheduler=run[2], step=step)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m-00000003.h5", "m-00000004.h5"]
    newest = glade.open_newest_checkpoint(path)
    assert newest is not None and newest.step == 4
    newest.verify()

    (tmp_path / "m-00000004.h5").write_bytes(b"damaged")
    with pytest.warns(RuntimeWarning, match="m-00000004.h5: not an HDF5 file"):
        assert glade.open_newest_checkpoint(path).step == 3
    (tmp_path / "m-00000003.h5").write_bytes(b"damaged")
    with pytest.warns(RuntimeWarning), pytest.raises(glade.CheckpointError, match="no checkpoint is whole"):
        glade.open_newest_checkpoint(path)

    with pytest.raises(glade.CheckpointError, match="No such file"):
        glade.CheckpointSaver(tmp_path / "folder" / "m.h5")
    (tmp_path / "folder").mkdir()
    saver = glade.CheckpointSaver(tmp_path / "folder" / "m.h5")
    (tmp_path / "folder").rmdir()
    saver.save(run[0])
    with pytest.raises(glade.CheckpointError, match="No such file"):
        saver.wait()
    saver.check()


def test_parts_of_a_checkpoint(tmp_path):
    model, path = make()[0], tmp_path / "m.h5"
    glade.save(model, path)
    state = model.state_dict()
    assert glade.load_state_dict_hdf5(path, "model").keys() == state.keys()
    part = glade.load_state_dict_hdf5(path, "/model/", include=["*.weight", "?m_head*"], rename={"model.": "decoder."}, dtype="float64")
    assert part["lm_head.weight"].dtype == glade.float64 and all(name.endswith("weight") for name in part)
    assert {name.replace("decoder.", "model.", 1) for name in part} == {name for name in state if name.endswith("weight")}
    file = glade.HDF5File(path)
    assert "model/lm_head" in file and "model/lm_head/weight" in file and "head" not in file
    assert file.read("model/lm_head/weight").tolist() == state["lm_head.weight"].tolist()
    target = glade.zeros(11, 16)
    file.read_into("model/lm_head/weight", target)
    assert target.tolist() == state["lm_head.weight"].tolist()
    with pytest.raises(glade.CheckpointError, match="m.h5: other: is missing"):
        glade.load_state_dict_hdf5(path, "other")
    with pytest.raises(glade.CheckpointError, match="is missing"):
        file.read("model/lm_head")


def run_inspect(*arguments):
    return subprocess.run([sys.executable, "-m", "glade.inspect", *map(str, arguments)], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": os.path.dirname(os.path.dirname(glade.__file__))})


def test_inspect_into_a_pipe_that_is_closed(tmp_path):
    glade.save(nn.Linear(2, 2), tmp_path / "a.h5")
    command = f"exec {sys.executable} -m glade.inspect {tmp_path / 'a.h5'}"
    result = subprocess.run(["bash", "-c", f"({command}) | true; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True, timeout=60,
                            env=os.environ | {"PYTHONPATH": os.path.dirname(os.path.dirname(glade.__file__))})
    assert (result.returncode, result.stderr) == (1, "glade.inspect: the output cannot be written: Broken pipe\n")


def test_inspect(tmp_path):
    a, b = tmp_path / "a.h5", tmp_path / "b.h5"
    shared = glade.ones(2, 3)
    glade.save({"w": shared, "tied": shared, "n": glade.tensor([1])}, a, step=1, config='{"x": 1}')
    glade.save({"w": glade.tensor([[1.0, 1, 1], [1, 1, 1.5]]), "other": glade.ones(1), "n": glade.tensor([2**60])}, b, step=2, config='{"x": 1}')
    table = run_inspect(a)
    assert table.returncode == 0, table.stderr
    assert "step: 1\n" in table.stdout and "the same as model/tied" in table.stdout and '"x": 1' in table.stdout
    description = json.loads(run_inspect(a, "--json").stdout)
    assert description == inspect.describe(a)
    assert description["tensors"][1] == {"name": "model/tied", "dtype": "float32", "shape": [2, 3], "bytes": 24, "stored_bytes": 28}
    assert run_inspect("--diff", a, a).returncode == 0
    different = run_inspect("--diff", a, b)
    assert different.returncode == 1
    assert different.stdout.splitlines() == [
        "step: 1 and 2",
        "model/n: 1 of 1 values differ, by up to 1.15e+18",
        f"model/other: only in {b}",
        f"model/tied: only in {a}",
        "model/w: 1 of 6 values differ, by up to 0.5",
    ]
    failed = run_inspect(tmp_path / "missing.h5")
    assert failed.returncode == 1 and failed.stderr.count("\n") == 1 and "missing.h5: cannot be opened" in failed.stderr


def test_errors(tmp_path):
    with pytest.raises(glade.CheckpointError, match="missing.h5"):
        glade.load(tmp_path / "missing.h5")
    with pytest.raises(OSError):
        glade.save({"x": glade.ones(1)}, tmp_path / "no" / "folder.h5")
    (tmp_path / "text.h5").write_text("no HDF5")
    with pytest.raises(glade.CheckpointError, match="text.h5"):
        glade.load(tmp_path / "text.h5")
    glade.save(nn.Linear(2, 2), tmp_path / "l.h5")
    with pytest.raises(glade.CheckpointError, match="bias"):
        glade.load(tmp_path / "l.h5").restore(nn.Linear(2, 2, bias=False))
    with pytest.raises(TypeError):
        glade.save(3, tmp_path / "x.h5")


def test_refuses_what_could_not_be_read_again(tmp_path):
    x = glade.ones(1)
    for config in ["not json", "a\0b", "{}\0", "3"]:
        with pytest.raises(ValueError, match="config (is no JSON object|has a zero byte)"):
            glade.save({"a": x}, tmp_path / "a.h5", config=config)
    with pytest.raises(glade.CheckpointError, match="a.h5: /model: 'a' cannot be stored beside 'a.b'"):
        glade.save({"a.b": x, "a": x}, tmp_path / "a.h5")
    saver = glade.CheckpointSaver(tmp_path / "a.h5", keep=2)
    with pytest.raises(ValueError, match="step is -5, expected 0 or more"):
        saver.save({"a": x}, step=-5)
    saver.wait()
    assert not list(tmp_path.iterdir())


def test_a_model_larger_than_its_checkpoint_is_not_made(tmp_path):
    model = nn.models.GLAForCausalLM(hidden_size=16, num_hidden_layers=1, num_heads=2)
    for field, message in [("num_hidden_layers", "tensors for 268435456 layers"), ("vocab_size", "but the config says [268435456, 16]")]:
        glade.save(model.state_dict(), tmp_path / "m.h5", config=json.dumps({**model.config, field: 1 << 28}))
        with pytest.raises(ValueError, match=re.escape(message)):
            nn.models.from_checkpoint(glade.load(tmp_path / "m.h5"))
        for program in (python("generate"), cpp("generate")):
            code, error = refused([*program, "--device", "cpu", "--checkpoint", "m.h5", "--prompt", "x"], tmp_path)
            assert code == 1 and "m.h5: " in error and message in error


def test_numbered_checkpoints_are_the_savers_own(tmp_path):
    for name in ("m-1.h5", "m-00000003.h5", "m-00000002.h5", "m-00000004.h5.tmp", "other-00000005.h5"):
        (tmp_path / name).write_text("")
    assert [os.path.basename(path) for path in glade.numbered_checkpoints(tmp_path / "m.h5")] == ["m-00000002.h5", "m-00000003.h5"]
    assert glade.numbered_checkpoints(tmp_path / "missing" / "m.h5") == []

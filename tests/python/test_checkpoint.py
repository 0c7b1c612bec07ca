"""glade.save and glade.load, and what is in the files."""

import numpy as np
import pytest
from conftest import to_numpy

import glade
from glade import nn, optim


def make():
    model = nn.models.GLAForCausalLM(vocab_size=11, hidden_size=16, num_hidden_layers=1, num_heads=2)
    optimizer = optim.AdamW(model.named_parameters())
    return model, optimizer, optim.LRScheduler(optimizer, optim.warmup_cosine_lr(2, 10))


def train(model, optimizer, scheduler, steps):
    losses = []
    for _ in range(steps):
        ids = (glade.rand(2, 6) * 11).long()
        loss = model.loss(ids[:, :-1], ids[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        losses.append(loss.item())
    return losses


def test_resuming_is_not_stopping(tmp_path):
    path = tmp_path / "model.h5"
    run = make()
    train(*run, 3)
    glade.save(run[0], path, optimizer=run[1], scheduler=run[2], step=3, data={"position": glade.tensor([7])}, compression=4)
    expected = train(*run, 3)

    checkpoint = glade.load(path)
    assert checkpoint.step == 3 and checkpoint.data["position"].tolist() == [7] and checkpoint.path == str(path)
    assert checkpoint.config == run[0].config and checkpoint.library_version == glade.__version__ and checkpoint.created
    glade.manual_seed(99)
    resumed = make()
    checkpoint.restore(*resumed)
    assert train(*resumed, 3) == expected

    model = nn.models.from_checkpoint(glade.load(str(path)))
    assert set(model.state_dict()) == set(checkpoint.model)


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


def test_h5py_reads_it(tmp_path):
    h5py = pytest.importorskip("h5py")
    linear = nn.Linear(2, 3)
    glade.save(linear, tmp_path / "l.h5")
    found = {}
    with h5py.File(tmp_path / "l.h5") as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    (weight,) = [value for name, value in found.items() if name.endswith("weight")]
    np.testing.assert_array_equal(weight, to_numpy(linear.weight))


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

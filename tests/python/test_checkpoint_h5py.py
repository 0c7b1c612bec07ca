"""Files that h5py and glade write for each other."""

import numpy as np
import pytest
from conftest import to_numpy
from programs import call, cpp, refused

import glade
from glade import inspect, nn

h5py = pytest.importorskip("h5py")

DTYPES = {"float64": "f8", "float32": "f4", "float16": "f2", "int64": "i8", "int32": "i4", "uint8": "u1", "bool": "?"}


def values(dtype, shape=(3, 4)):
    return (np.arange(np.prod(shape)) % 5 > 1 if dtype == "bool" else np.arange(np.prod(shape))).reshape(shape).astype(dtype)


@pytest.mark.parametrize("compression", [0, 4])
def test_h5py_reads_what_glade_writes(tmp_path, compression):
    path = tmp_path / "m.h5"
    state = {f"types.{name}": glade.tensor(values(numpy)) for name, numpy in DTYPES.items()}
    state |= {"large": glade.randn(700, 1000), "scalar": glade.tensor(3.5), "empty": glade.zeros(0, 3)}
    state["tied"] = state["large"]
    glade.save(state, path, step=7, config='{"a": 1}', compression=compression, data={"position": glade.tensor([5])})
    with h5py.File(path) as file:
        assert set(file) == {"model", "optimizer", "scheduler", "data", "random"}
        assert file.attrs["format"] == b"glade" and file.attrs["format_version"] == 1 and file.attrs["step"] == 7
        assert file.attrs["config"].decode() == '{"a": 1}' and file.attrs["library_version"].decode() == glade.__version__
        assert file["random/default"].shape == (2,) and file["data/position"][()].tolist() == [5]
        for name, x in state.items():
            dataset = file["model"][name.replace(".", "/")]
            assert dataset.dtype == to_numpy(x).dtype
            np.testing.assert_array_equal(dataset[()], to_numpy(x))
        large = file["model/large"]
        assert large.fletcher32 and large.chunks is not None
        assert (large.compression, large.shuffle) == (("gzip", True) if compression else (None, False))
        assert file["model/tied"].id == large.id or h5py.h5o.get_info(large.id).rc == 2


def test_glade_reads_what_h5py_changes(tmp_path):
    path = tmp_path / "m.h5"
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    glade.save(model, path, step=1)
    with h5py.File(path, "r+") as file:
        file["model/weight"][:] = values("float32", (2, 3))
        file.attrs["step"] = 9
        del file["model/bias"]
        file.create_dataset("model/bias", data=np.float32([7, 8]), compression="gzip")
    checkpoint = glade.CheckpointFile(path)
    assert checkpoint.step == 9
    checkpoint.restore(other)
    assert other.weight.tolist() == values("float32", (2, 3)).tolist() and other.bias.tolist() == [7, 8]


def test_a_checkpoint_that_h5py_writes(tmp_path):
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file.attrs.update({"format": "glade", "format_version": 1, "step": 4, "config": "", "created": "now", "library_version": "0"})
        file["model/weight"], file["model/bias"] = values("float32", (2, 3)), np.float32([1, 2])
    model = nn.Linear(3, 2)
    glade.CheckpointFile(tmp_path / "m.h5").restore(model)
    assert model.weight.tolist() == values("float32", (2, 3)).tolist()


@pytest.mark.parametrize("libver", ["earliest", "v110", "latest"])
def test_files_of_any_nesting(tmp_path, libver):
    path = tmp_path / "weights.h5"
    expected = {}
    with h5py.File(path, "w", libver=libver) as file:
        for depth in range(12):
            for name, numpy in DTYPES.items():
                groups = [f"level {i}" for i in range(depth)] + [name]
                file["/".join(groups)] = expected[".".join(groups)] = values(numpy)
    state = glade.load(path)
    assert state.keys() == expected.keys()
    for name, x in state.items():
        assert to_numpy(x).dtype == expected[name].dtype
        np.testing.assert_array_equal(to_numpy(x), expected[name])
    assert glade.load_state_dict_hdf5(path, "level 0/level 1", include=["int64"])["int64"].tolist() == values("i8").tolist()


def test_a_layout_as_keras_has_it(tmp_path):
    path = tmp_path / "weights.h5"
    with h5py.File(path, "w") as file:
        file.attrs["keras_version"] = "2.12.0"
        layer = file.create_group("model_weights/dense/dense")
        layer.attrs["weight_names"] = np.array([b"dense/kernel:0", b"dense/bias:0"])
        layer["kernel:0"], layer["bias:0"] = values("float32", (3, 2)), np.float32([1, 2])
    assert glade.load(path).keys() == {"model_weights.dense.dense.kernel:0", "model_weights.dense.dense.bias:0"}
    model = nn.Linear(3, 2)
    names = {"dense.dense.kernel:0": "weight", "dense.dense.bias:0": "bias"}
    state = glade.load_state_dict_hdf5(path, "model_weights", rename=names)
    state["weight"] = state["weight"].transpose(0, 1)
    model.load_state_dict(state)
    assert model(glade.tensor([[1.0, 0, 0]])).tolist() == [[1, 3]]


def test_bfloat16(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    from glade import hdf5

    path = tmp_path / "m.h5"
    x = glade.randn(300, 5).to("bfloat16")
    glade.save({"x": x, "f": x.float(), "scalar": glade.tensor(1.5, dtype="bfloat16")}, path)
    with h5py.File(path, "r+") as file:
        assert hdf5.is_bfloat16(file["model/x"]) and not hdf5.is_bfloat16(file["model/f"])
        np.testing.assert_array_equal(file["model/x"][()], to_numpy(x))
        bits = hdf5.read(file["model/x"])
        assert bits.dtype == ml_dtypes.bfloat16 and hdf5.read(file["model/f"]).dtype == np.float32
        np.testing.assert_array_equal(bits.astype("f4"), to_numpy(x))
        assert hdf5.read(file["model/scalar"]) == ml_dtypes.bfloat16(1.5)
        hdf5.create_dataset(file, "model/new/y", bits)
        hdf5.create_dataset(file, "model/new/scalar", np.array(2.5, ml_dtypes.bfloat16))
        hdf5.create_dataset(file, "model/new/empty", bits[:0])
        hdf5.create_dataset(file, "model/new/f", np.float32([1, 2]))
    model = glade.load(path).model
    assert model["new.y"].dtype == glade.bfloat16 and model["new.y"].float().tolist() == x.float().tolist()
    assert model["new.scalar"].dtype == glade.bfloat16 and model["new.scalar"].item() == 2.5
    assert model["new.empty"].dtype == glade.bfloat16 and model["new.empty"].shape == (0, 5)
    assert model["new.f"].tolist() == [1, 2]


ARRAYS_OF_CHUNKS = {  # rows, columns, columns of a chunk, greatest shape
    "pages that share a byte of flags": (135000, 1, 1, (None, 1)),
    "most entries beyond the shape": (10, 4, 4, (None, 4000000)),
    "the same of a fixed size": (10, 4, 4, (10, 400000)),
}


@pytest.mark.parametrize("rows, columns, width, greatest", ARRAYS_OF_CHUNKS.values(), ids=ARRAYS_OF_CHUNKS)
def test_arrays_of_chunks(tmp_path, rows, columns, width, greatest):
    expected = values("int32", (rows, columns))
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file.create_dataset("a", data=expected, chunks=(1, width), maxshape=greatest)
    np.testing.assert_array_equal(to_numpy(glade.load(tmp_path / "a.h5")["a"]), expected)


def test_programs_survive_a_config_of_any_depth(tmp_path):
    path = tmp_path / "m.h5"
    glade.save({"x": glade.zeros(2)}, path, config="{}")
    with h5py.File(path, "r+") as file:
        file.attrs["config"] = '{"a": ' + "[" * 30000 + "]" * 30000 + "}"
    assert inspect.describe(path)["config"].startswith('{"a": [[')
    assert "config: " in call([*cpp("inspect_checkpoint"), path], tmp_path)
    code, error = refused([*cpp("generate"), "--device", "cpu", "--dtype", "float32", "--checkpoint", path, "--prompt", "x"], tmp_path)
    assert code == 1 and "m.h5: model config is nested too deeply" in error

"""Sharing memory with NumPy and, through DLPack, with other libraries."""

import gc
import importlib
import weakref

import numpy as np
import pytest

import glade

NUMPY_DTYPES = ["float64", "float32", "float16", "int64", "int32", "uint8", "bool"]


def library(name):
    return pytest.importorskip(name)


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_numpy_there_and_back(dtype):
    x = glade.tensor([[0, 1, 1], [1, 0, 1]], dtype=dtype)
    for array in [x.numpy(), np.asarray(x), np.array(memoryview(x), copy=False)]:
        assert array.dtype == dtype and array.tolist() == x.tolist()
        array[0, 0] = 1
        assert x[0, 0].item() == 1
        x[0, 0] = 0
        assert array[0, 0] == 0
    assert x.T.numpy().strides == x.numpy().T.strides
    back = glade.as_tensor(x.numpy())
    assert back.dtype is x.dtype and back.data_ptr() == x.data_ptr()
    assert np.array(x).ctypes.data != x.data_ptr()


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_numpy_views(dtype):
    array = np.ones((4, 6)).astype(dtype)
    wide = np.lib.stride_tricks.as_strided(array[0], (3, 6), (0, array.itemsize))
    for view in [array[1:, ::2], array.T, array[:, None, 1], array[:1, 0], array[0, 0, ...], wide]:
        x = glade.as_tensor(view)
        assert x.shape == view.shape and x.data_ptr() == view.ctypes.data and x.tolist() == view.tolist()
    shifted = np.frombuffer(b"x" + array.tobytes(), "uint8")[1:].view(dtype)
    if array.itemsize > 1:  # copied: not aligned to its elements
        assert glade.as_tensor(shifted).data_ptr() % array.itemsize == 0 and glade.as_tensor(shifted).tolist() == shifted.tolist()
        with pytest.raises(ValueError, match="multiples of their size"):
            glade.from_dlpack(shifted)
    reversed_rows = array[::-1]
    assert glade.as_tensor(reversed_rows).tolist() == reversed_rows.tolist()  # copied: no negative strides
    assert glade.as_tensor(array[:0]).shape == (0, 6) and glade.zeros(0, 3).numpy().shape == (0, 3)
    assert glade.tensor(np.array(5, dtype)).shape == ()


def test_read_only_memory_is_copied(tmp_path):
    np.arange(4, dtype="float32").tofile(tmp_path / "x.bin")
    frozen = np.arange(4, dtype="float32")
    frozen.flags.writeable = False
    for array in [np.memmap(tmp_path / "x.bin", "float32", "r"), frozen, frozen[::2], np.broadcast_to(frozen, (2, 4))]:
        before = array.tolist()
        for share in [glade.as_tensor, glade.from_dlpack]:
            x = share(array)
            assert x.tolist() == before
            x += 1
            assert array.tolist() == before and x.tolist() == (np.asarray(array) + 1).tolist()
    data = bytes([97, 98, 99])
    glade.as_tensor(np.frombuffer(data, "uint8")).zero_()
    glade.from_dlpack(np.frombuffer(data, "uint8")).zero_()
    assert data == b"abc"
    assert glade.from_dlpack(frozen[:0]).shape == (0,)


@pytest.mark.parametrize("source", ["buffer", "copy", "dlpack", "pickle"])
def test_any_byte_but_0_is_true(source):
    """NumPy's view(bool) takes the bytes as they are, and shared memory can change under a tensor."""
    import pickle

    bytes_ = np.array([[0, 1, 2, 0, 255], [128, 0, 3, 1, 16]], np.uint8)
    expected = bytes_ != 0
    mask = {"buffer": glade.as_tensor, "copy": glade.tensor, "dlpack": glade.from_dlpack, "pickle": glade.as_tensor}[source](bytes_.view(bool))
    if source == "pickle":
        mask = pickle.loads(pickle.dumps(mask))
    x = glade.arange(10).view(2, 5)
    assert mask.tolist() == expected.tolist() and mask.sum().item() == 7 and mask.count_nonzero().item() == 7
    assert mask.long().tolist() == expected.astype(int).tolist() and mask.float().sum().item() == 7
    assert x.masked_fill(mask, -1).tolist() == np.where(expected, -1, x.numpy()).tolist()
    assert glade.where(mask, x, 0).tolist() == np.where(expected, x.numpy(), 0).tolist()
    assert x[mask].tolist() == x.numpy()[expected].tolist() and x.masked_select(mask).tolist() == x[mask].tolist()
    assert (mask & glade.tensor(True)).tolist() == expected.tolist() and (~mask).tolist() == (~expected).tolist()
    assert (mask ^ mask.clone()).any().item() is False and mask.all(1).tolist() == [False, False] and mask[:, 2].all().item() is True
    assert glade.equal(mask, glade.tensor(expected)) and mask.nonzero().tolist() == np.argwhere(expected).tolist()
    assert mask[0, 2].item() is True and mask.max(1).indices.tolist() == [1, 0] and repr(mask) == repr(glade.tensor(expected))
    y = x.clone()
    y[mask] = 7
    assert y.tolist() == np.where(expected, 7, x.numpy()).tolist()
    if source in ("buffer", "dlpack"):
        bytes_[0, 0] = 77
        assert mask[0, 0].item() is True and mask.sum().item() == 8


def test_memory_lives_as_long_as_either_side():
    array = np.arange(5.0)
    reference = weakref.ref(array)
    x = glade.as_tensor(array)[1:]
    del array
    gc.collect()
    assert reference() is not None and x.tolist() == [1, 2, 3, 4]
    del x
    assert reference() is None
    array = glade.arange(5).numpy()
    gc.collect()
    assert array.tolist() == [0, 1, 2, 3, 4]


def test_array_protocol():
    x = glade.tensor([1.0, 2.0])
    assert np.asarray(x, dtype="int64").tolist() == [1, 2]
    assert np.exp(x).tolist() == pytest.approx([np.e, np.e**2])
    assert x.__array__("float64").dtype == "float64"
    assert x.__array__(copy=True).ctypes.data != x.data_ptr()
    with pytest.raises(ValueError):
        x.__array__("float64", copy=False)


def test_what_numpy_cannot_have():
    with pytest.raises(glade.AutogradError, match="detach"):
        glade.ones(1, requires_grad=True).numpy()
    with pytest.raises(glade.AutogradError):
        np.asarray(glade.ones(1, requires_grad=True))
    with pytest.raises(BufferError):
        memoryview(glade.ones(1, requires_grad=True))
    with pytest.raises(BufferError):
        memoryview(glade.ones(1, dtype="bfloat16"))
    for dtype in ["uint64", "complex64", ">f4", "U3"]:
        with pytest.raises(TypeError, match="counterpart"):
            glade.as_tensor(np.zeros(2, dtype))


def test_bfloat16_through_ml_dtypes():
    ml_dtypes = library("ml_dtypes")
    x = glade.tensor([[1.5, -2.0, 3.0]], dtype="bfloat16")
    array = x.T.numpy()
    assert array.dtype == ml_dtypes.bfloat16 and array.shape == (3, 1) and array.astype("float32").tolist() == [[1.5], [-2.0], [3.0]]
    array[0, 0] = 7
    assert x[0, 0].item() == 7
    back = glade.as_tensor(array)
    assert back.dtype is glade.bfloat16 and back.data_ptr() == x.data_ptr() and back.tolist() == [[7.0], [-2.0], [3.0]]
    assert np.asarray(x).dtype == ml_dtypes.bfloat16
    assert glade.zeros(0, dtype="bfloat16").numpy().shape == (0,)


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_dlpack_with_numpy(dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    for source in [array, array.T, array[:, 1:]]:
        x = glade.from_dlpack(source)
        assert x.data_ptr() == source.ctypes.data and x.tolist() == source.tolist()
        back = np.from_dlpack(x)
        assert back.ctypes.data == source.ctypes.data and back.dtype == dtype and back.strides == source.strides


def test_dlpack_protocol(device):
    x = glade.ones(2, 3, device=device)
    assert x.__dlpack_device__() == ((1, 0) if device == "cpu" else (2, 0))
    for arguments in [{}, {"stream": None}, {"max_version": (1, 0)}, {"max_version": None, "dl_device": None, "copy": None}]:
        x.__dlpack__(**arguments)  # a capsule that nobody takes gives its tensor back
    assert glade.from_dlpack(x).is_same(x)

    class Old:  # a producer from before max_version, and one from after it
        def __dlpack_device__(self):
            return x.__dlpack_device__()

        def __dlpack__(self, *, stream=None):
            return x.__dlpack__(stream=stream)

    assert glade.from_dlpack(Old()).data_ptr() == x.data_ptr()
    assert glade.from_dlpack(Old()).shape == (2, 3)

    class Copying(Old):
        def __dlpack__(self, *, stream=None, max_version=None):
            return x.__dlpack__(stream=stream, max_version=max_version, copy=True)

    assert glade.from_dlpack(Copying()).data_ptr() != x.data_ptr()
    with pytest.raises(BufferError):
        glade.ones(1, requires_grad=True).__dlpack__()
    with pytest.raises(TypeError):
        glade.from_dlpack(np.zeros(2, "complex64"))
    with pytest.raises(AttributeError):
        glade.from_dlpack([1, 2])


def test_dlpack_lifetime():
    x = glade.ones(2, 3)
    alive = np.from_dlpack(x[1])
    del x
    gc.collect()
    assert alive.tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16", "int64", "int32", "uint8", "bool"])
def test_torch(dtype, device):
    torch = library("torch")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    x = glade.tensor([[0, 1, 1], [1, 0, 1]], dtype=dtype, device=device)
    t = torch.from_dlpack(x)
    assert t.dtype is getattr(torch, dtype) and t.device.type == device and t.data_ptr() == x.data_ptr() and t.tolist() == x.tolist()
    t[0, 0] = 1
    assert x[0, 0].item() == 1
    back = glade.from_dlpack(t.T)
    assert back.dtype is x.dtype and back.data_ptr() == x.data_ptr() and back.tolist() == t.T.tolist()


def test_torch_operand():
    torch = library("torch")
    o, _ = glade.recurrent(*[torch.ones(1, 2, 1, 4)] * 3)
    assert o.shape == (1, 2, 1, 4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "bool"])
def test_jax(dtype, device, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or it takes most of the GPU's memory
    jax = library("jax")
    if device == "cuda" and jax.default_backend() != "gpu":
        pytest.skip("this JAX has no CUDA")
    x = glade.tensor([[0, 1, 1], [1, 0, 1]], dtype=dtype, device=device)
    array = jax.dlpack.from_dlpack(x)
    assert str(array.dtype) == dtype and array.tolist() == x.tolist()
    assert array.device.platform == ("cpu" if device == "cpu" else "gpu")
    back = glade.from_dlpack(array)
    assert back.tolist() == x.tolist() and back.device.type == device


def test_jax_operand():
    jax = library("jax")
    o, _ = glade.recurrent(*[jax.numpy.ones((1, 2, 1, 4))] * 3)
    assert o.shape == (1, 2, 1, 4)


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy is not installed")
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "int32", "uint8", "bool"])
def test_cupy(dtype):
    if not (hasattr(glade, "cuda") and glade.cuda.is_available()):
        pytest.skip("no GPU")
    cupy = library("cupy")
    x = glade.tensor([[0, 1, 1], [1, 0, 1]], dtype=dtype, device="cuda")
    array = cupy.from_dlpack(x)
    assert array.dtype == dtype and array.data.ptr == x.data_ptr() and array.get().tolist() == x.tolist()
    back = glade.from_dlpack(array.T)
    assert back.data_ptr() == x.data_ptr() and back.tolist() == array.T.get().tolist()


class Lender:
    """A tensor's memory by DLPack alone, so that glade takes it for another library's."""

    def __init__(self, tensor):
        self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__


@pytest.mark.parametrize("share", ["numpy", "dlpack", "as_tensor", "from_dlpack"])
def test_products_see_what_others_write_to_weights(share):
    x, targets = glade.ones(2, 4, dtype=glade.bfloat16), glade.tensor([0, 0])
    memory = np.zeros((3, 4), "f4")
    weight = {"as_tensor": glade.as_tensor, "from_dlpack": glade.from_dlpack}.get(share, glade.tensor)(memory)
    weight.requires_grad_()
    loss = lambda: glade.linear_cross_entropy(x, weight, targets).item()
    assert loss() == pytest.approx(np.log(3))
    other = {"numpy": lambda: weight.detach().numpy(), "dlpack": lambda: glade.from_dlpack(Lender(weight.detach()))}.get(share, lambda: memory)()
    for value in [1, 2]:
        other[0] = value
        assert loss() == pytest.approx(np.log(np.exp(4 * value) + 2) - 4 * value, abs=1e-5)
    other[0] = 0
    del other
    gc.collect()
    assert loss() == pytest.approx(np.log(3))

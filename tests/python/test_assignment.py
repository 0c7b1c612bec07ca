"""Assignment into results on the tape is recorded; what could not be is an error. And small things of the tape."""

import numpy as np
import pytest
from conftest import to_numpy

import glade
from glade import nn

try:
    import torch
except ImportError:
    torch = None

MASK = np.array([[True, False, True, False], [False] * 4, [True] * 4])
KEYS = {
    "row": (0, (4,)), "negative": (-1, ()), "element": ((1, 2), ()), "slice": ((slice(None), slice(1, 3)), (3, 2)),
    "step": (slice(None, None, 2), (4,)), "backwards": ((slice(None), slice(None, None, -1)), (3, 4)), "ellipsis": ((Ellipsis, 0), (3,)),
    "new axis": ((None, 1), (1, 4)), "broadcast": (slice(0, 2), (1, 4)), "list": ([0, 2], (2, 4)), "mask": (MASK, (6,)),
    "positions": ((np.array([0, 1, 2]), np.array([3, 2, 1])), (3,)), "twice": (np.array([1, 1, 0]), (3, 4)),
}  # fmt: skip


def key_for(key, library):
    convert = (lambda k: torch.tensor(k) if isinstance(k, np.ndarray) else k) if library is torch else (lambda k: k)
    return tuple(map(convert, key)) if isinstance(key, tuple) else convert(key)


@pytest.mark.parametrize("name", KEYS)
def test_gradients(rng, device, name):
    key, shape = KEYS[name]
    x = glade.tensor(rng.normal(size=(3, 4)), device=device, requires_grad=True)
    value = glade.tensor(rng.normal(size=shape), device=device, requires_grad=True)

    def assign(x, value):
        y = x * 2
        y[key] = value * 3
        return y * y

    expected = to_numpy(x) * 2
    expected[key] = to_numpy(value) * 3
    np.testing.assert_allclose(to_numpy(assign(x, value)), expected**2)
    assert glade.autograd.gradcheck(assign, [x, value])
    assert glade.autograd.gradgradcheck(assign, [x, value])
    assert glade.autograd.gradcheck(lambda value: assign(x.detach(), value), value)  # y records nothing before the assignment
    if torch is not None and name not in ("backwards", "twice"):  # which PyTorch refuses, or gives the gradient twice
        tx, tv = (torch.tensor(to_numpy(t), requires_grad=True) for t in (x, value))
        ty = tx * 2
        ty[key_for(key, torch)] = tv * 3
        (ty * ty).sum().backward()
        assign(x, value).sum().backward()
        np.testing.assert_allclose(to_numpy(x.grad), tx.grad.numpy())
        np.testing.assert_allclose(to_numpy(value.grad), tv.grad.numpy())


@pytest.mark.parametrize("key", [
    (slice(None, None, -1), [2, 0]), ([0, 2], slice(None, None, -2)), ([0, 2], slice(None), [3, 1]), (None, MASK), (MASK, slice(1)),
    ([[1], [0]], slice(None, None, -1), [0, 3]), (Ellipsis, [3, 3]), (slice(1, 3), [1, 1, 0]), (MASK[:, 0], slice(None, None, -1), [1]),
], ids=str)  # fmt: skip
def test_values_go_where_the_key_reads(rng, device, key):
    parts = key if isinstance(key, tuple) else (key,)
    tensors = tuple(glade.tensor(np.array(k), device=device) if isinstance(k, (list, np.ndarray)) else k for k in parts)
    values = rng.normal(size=(3, 4, 4))
    numbers = np.arange(values.size).reshape(values.shape)[key]
    value = rng.normal(size=numbers.shape)
    expected = values.copy()
    for number, one in zip(numbers.ravel(), value.ravel()):
        expected.ravel()[number] = one
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):  # in memory
        x = glade.tensor(values, device=device).permute(*order).contiguous().permute(*np.argsort(order).tolist())
        x[tensors] = glade.tensor(value, device=device)
        np.testing.assert_array_equal(to_numpy(x), expected)


def test_the_example():
    x = glade.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = x * 2
    y[0] = 5.0
    assert y.tolist() == [5, 4, 6] and not y.is_leaf
    y.sum().backward()
    assert x.grad.tolist() == [0, 2, 2]


def test_filling_a_new_tensor():
    w = glade.tensor(3.0, requires_grad=True)
    out = glade.zeros(4)
    for i in range(4):
        out[i] = w * i
    out[1] += w
    assert out.tolist() == [0, 6, 6, 9]
    out.sum().backward()
    assert w.grad.item() == 7


def test_changed_values_are_found_in_backward():
    x = glade.tensor([1.0, 2.0], requires_grad=True)
    y = x * 2
    z = (y * y).sum()  # keeps y
    y[0] = 7.0
    with pytest.raises(glade.AutogradError, match="changed in place"):
        z.backward()
    y = x * 2
    z = y.sum()  # needs y's gradient alone, from before
    y[0] = 7.0
    z.backward()
    assert x.grad.tolist() == [2, 2]


def test_what_cannot_be_recorded():
    x = glade.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    with pytest.raises(glade.AutogradError, match=r"write y = x.clone\(\) and then y\[...\] = value, or use glade.no_grad"):
        x[0] = 1.0
    y = x * 2
    view = y[0]
    for target in (y, view):
        with pytest.raises(glade.AutogradError, match=r"shares its memory.* write y = y.clone\(\) and then"):
            target[0] = 1.0
    assert y.tolist() == [[2, 4], [6, 8]]
    y = y.clone()
    y[0] = 1.0
    y.sum().backward()
    assert x.grad.tolist() == [[0, 0], [2, 2]]
    kept = x.exp()  # backward of exp needs its result
    with pytest.raises(glade.AutogradError, match="what backward needs"):
        kept[0] = 1.0
    with glade.no_grad():
        x[0] = 1.0
    assert x[0].tolist() == [1, 1] and x.requires_grad and x.is_leaf


def test_errors_change_nothing():
    x = glade.ones(3, requires_grad=True)
    y = x * 2
    for key, value, error in [(7, 1.0, glade.IndexError), (slice(0, 2), glade.ones(3), glade.ShapeError)]:
        with pytest.raises(error):
            y[key] = value
    y.sum().backward()
    assert y.tolist() == [2, 2, 2] and x.grad.tolist() == [2, 2, 2]


def test_a_layer_learns_through_an_assignment():
    model = nn.Linear(2, 2)
    out = glade.zeros(3, 2)
    out[1:] = model(glade.ones(2, 2))
    out.square().sum().backward()
    assert model.weight.grad is not None and model.bias.grad.tolist() == pytest.approx((4 * model(glade.ones(1, 2))[0]).tolist())


# ---- the tape --------------------------------------------------------------------------------------------------------


def test_retain_grad():
    x = glade.tensor([1.0, 2.0], requires_grad=True)
    y = x * 3
    y.retain_grad()
    y.retain_grad()
    (y * y).sum().backward(retain_graph=True)
    assert y.grad.tolist() == [6, 12] and x.grad.tolist() == [18, 36]
    (y * 1).sum().backward()
    assert y.grad.tolist() == [7, 13]
    x.retain_grad()
    with pytest.raises(glade.AutogradError, match="retain_grad"):
        glade.ones(1).retain_grad()


def test_set_grad_enabled():
    try:
        with glade.set_grad_enabled(False):
            assert not glade.is_grad_enabled()
            with glade.set_grad_enabled(True):
                assert glade.is_grad_enabled()
            assert not glade.is_grad_enabled()
        assert glade.is_grad_enabled()

        @glade.set_grad_enabled(False)
        def recording():
            return glade.is_grad_enabled()

        assert glade.is_grad_enabled() and not recording() and not recording() and glade.is_grad_enabled()
        glade.set_grad_enabled(False)
        assert not glade.is_grad_enabled()
    finally:
        glade.set_grad_enabled(True)


# ---- looks and arrays ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "wider"), [("int8", "int32"), ("int16", "int32"), ("uint16", "int32"), ("uint32", "int64")])
def test_integers_of_numpy_that_glade_lacks(dtype, wider):
    limits = np.iinfo(dtype)
    array = np.array([[limits.min, limits.max], [3, 4]], dtype)
    for make in (glade.tensor, glade.as_tensor):
        x = make(array)
        assert x.dtype.name == wider and x.tolist() == array.tolist() and make(array.T).tolist() == array.T.tolist()
    assert (glade.ones(2, 2, dtype="int64") + array.astype("int8")).tolist() == (1 + array.astype("int8").astype("int64")).tolist()


def test_reprs(tmp_path):
    (tmp_path / "text.txt").write_text("abcd" * 20)
    data = glade.data.TokenData(tmp_path / "text.txt")
    assert repr(data) == "TokenData(80 tokens, vocab_size=256, text)"
    batch = next(glade.data.Loader(data, batch_size=2, seq_len=8))
    assert repr(batch) == "Batch(inputs=[2, 8], targets=[2, 8], counted=16, device='cpu')"
    model = nn.Linear(2, 2)
    path = tmp_path / "model.h5"
    glade.save(model, path, optimizer=glade.optim.SGD(model.parameters()), step=7)
    assert repr(glade.load(path)) == f"Checkpoint(step=7, model: 2 tensors, optimizer: 2 tensors, path='{path}')"
    assert repr(glade.CheckpointFile(path)).startswith("CheckpointFile(step=7")
    assert repr(glade.data.Loader(data, batch_size=2, seq_len=8)) == "Loader(position=0, sequences_per_epoch=9)"
    assert repr(glade.data.TensorDataset(glade.ones(4, 3), glade.ones(4))) == "TensorDataset(4 items of shapes (3,), ())"
    assert repr(glade.data.Subset([1, 2, 3], [0])) == "Subset(1 of 3 items)"
    assert repr(nn.models.Conversation()) == "Conversation(0 tokens)" and repr(glade.optim.LossScaler("cpu", initial=8)) == "LossScaler(value=8.0)"
    scheduler = glade.optim.lr_scheduler.StepLR(glade.optim.SGD(model.parameters()), 1, gamma=0.5)
    scheduler.step()
    assert repr(scheduler) == "StepLR(step=1, factor=0.5)"


def test_nothing_is_written_to_no_elements(device):
    for shape in ((3, 0), (0, 3), (2, 0, 4)):
        x = glade.zeros(shape, device=device)
        x += 1
        x[:] = 2
        x[..., None] *= 3
        assert x.zero_().fill_(1).masked_fill_(x > 0, 5).clamp_(min=0).shape == shape
    x = glade.zeros(1, 4, device=device).expand(3, 4)
    x[:, 4:] = 1
    with pytest.raises(ValueError, match="is expanded"):
        x[:, 3:] = 1


def test_values_may_have_leading_dimensions_of_size_one():
    x, y = glade.zeros(3), glade.zeros(2, 3)
    x[0] = glade.tensor([5.0])
    y[0] = glade.ones(1, 3)
    y[[1]] = glade.ones(1, 1, 3) * 2
    assert x.tolist() == [5, 0, 0] and y.tolist() == [[1, 1, 1], [2, 2, 2]]
    z, value = glade.zeros(2, 3, requires_grad=True) * 1, glade.ones(1, 3, requires_grad=True)
    z[0] = value
    z.sum().backward()
    assert value.grad.tolist() == [[1, 1, 1]]


def test_memory_is_shared_by_address():
    x = glade.arange(6.0)
    x[1:] = glade.as_tensor(x.numpy()[:-1])
    assert x.tolist() == [0, 0, 1, 2, 3, 4]

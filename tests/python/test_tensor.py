"""Making tensors, what they say of themselves, operators, in-place changes."""

import copy
import gc
import operator
import pickle
import weakref

import numpy as np
import pytest
from conftest import to_numpy

import glade

DTYPES = [glade.float64, glade.float32, glade.bfloat16, glade.float16, glade.int64, glade.int32, glade.uint8, glade.bool]


def test_data_gives_dtype():
    assert glade.tensor(1.5).dtype is glade.float32
    assert glade.tensor(3).dtype is glade.int64
    assert glade.tensor(True).dtype is glade.bool
    assert glade.tensor([[1, 2], [3, 4]]).dtype is glade.int64
    assert glade.tensor([1, 2.5]).dtype is glade.float32
    assert glade.tensor(np.zeros(2)).dtype is glade.float64
    assert glade.tensor(np.float32(2)).dtype is glade.float32
    assert glade.tensor([1, 2], dtype=glade.bfloat16).tolist() == [1.0, 2.0]
    assert glade.tensor([]).shape == (0,)
    assert glade.tensor([glade.tensor(1.0), glade.tensor(2.0)]).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("name", ["float32", np.float32, np.dtype("float32"), glade.float32, glade.float])
def test_dtypes_have_several_names(name):
    assert glade.zeros(1, dtype=name).dtype is glade.float32
    assert glade.zeros(1, dtype=float).dtype is glade.float64  # Python's numbers, as in NumPy and PyTorch


def test_a_tensor_is_one_object():
    layer = glade.nn.Linear(2, 2)
    assert layer.weight is layer.weight and layer.parameters()[0] is layer.weight and layer.weight in layer.parameters()
    names = {parameter: name for name, parameter in layer.named_parameters()}
    assert names[layer.weight] == "weight" and names[layer.bias] == "bias"
    assert layer.weight.requires_grad_() is layer.weight and layer.weight.float() is layer.weight
    seen = []
    layer.weight.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf is layer.weight))
    layer(glade.ones(2)).sum().backward()
    assert seen == [True] and layer.weight.grad is layer.weight.grad
    x = glade.ones(2)
    again = weakref.ref(x, lambda _: seen.append(x_alias[0] is x_alias[0]))
    x_alias = glade.ones(1, 2)
    del x
    assert again() is None and seen == [True, False]  # and elements are tensors of their own


def test_copies_of_copy_share_memory():
    x = glade.tensor([1.0, 2.0], requires_grad=True)
    for y in (x, x * 2):
        z = copy.copy(y)
        assert z is not y and z.data_ptr() == y.data_ptr() and z.requires_grad and z.is_leaf
    assert not copy.copy(x.detach()).requires_grad
    copy.copy(x).sum().backward()
    assert x.grad is None


def test_tensor_copies_and_as_tensor_does_not():
    array = np.arange(4.0)
    copied, shared = glade.tensor(array), glade.as_tensor(array)
    array[0] = 7
    assert copied[0].item() == 0 and shared[0].item() == 7
    assert glade.as_tensor(shared).is_same(shared)
    assert not glade.tensor(shared).is_same(shared)


def test_factories(device):
    for shape in [(2, 3), [2, 3]]:
        assert glade.zeros(shape, device=device).shape == (2, 3)
    assert glade.ones(2, 3, device=device).sum().item() == 6
    assert glade.zeros(device=device).shape == ()
    assert glade.full((2,), 3, device=device).tolist() == [3, 3]
    assert glade.full((2,), 3, dtype="float64", device=device).dtype is glade.float64
    assert glade.arange(5, device=device).tolist() == [0, 1, 2, 3, 4]
    assert glade.arange(1, 2, 0.5, device=device).tolist() == [1.0, 1.5]
    assert glade.linspace(0, 1, 3, device=device).tolist() == [0.0, 0.5, 1.0]
    np.testing.assert_array_equal(to_numpy(glade.eye(3, device=device)), np.eye(3, dtype="float32"))
    assert glade.empty(2, 0, device=device).numel() == 0
    like = glade.zeros_like(glade.ones(2, dtype="int32", device=device))
    assert like.dtype is glade.int32 and like.tolist() == [0, 0]
    assert glade.ones(2, requires_grad=True).requires_grad


def test_random_numbers_follow_the_seed(device):
    glade.manual_seed(5)
    first = glade.randn(4, 4, device=device)
    state = glade.default_generator().state
    second = glade.rand(100, device=device)
    glade.default_generator().state = state
    assert second.tolist() == glade.rand(100, device=device).tolist()
    glade.manual_seed(5)
    assert first.tolist() == glade.randn(4, 4, device=device).tolist()
    assert 0 <= second.min().item() and second.max().item() < 1
    normal = glade.normal((10000,), 3, 2, device=device)
    assert abs(normal.mean().item() - 3) < 0.1 and abs(normal.var().item() - 4) < 0.2
    assert set(glade.bernoulli((100,), 0.5, device=device).tolist()) == {0.0, 1.0}
    generator = glade.Generator(5)
    assert glade.normal((4, 4), device=device, generator=generator).tolist() == first.tolist()
    assert 2 <= glade.uniform((100,), 2, 3, device=device).min().item()


def test_properties(device):
    x = glade.zeros(2, 3, 4, device=device)
    assert (x.shape, x.strides, x.ndim, x.numel(), x.itemsize, x.nbytes) == ((2, 3, 4), (12, 4, 1), 3, 24, 4, 96)
    assert glade.ones(1).expand(2**62).nbytes == 2**64
    assert x.device == device and x.device.type == device and x.device.index == 0
    assert x.T.shape == (4, 3, 2) and x.mT.shape == (2, 4, 3)
    assert x.is_contiguous() and not x.T.is_contiguous()
    assert len(x) == 2 and x.numel() == 24 and x.dim() == 3
    assert not x.requires_grad and x.is_leaf and x.grad is None


def test_repr():
    assert repr(glade.tensor([1.0, 2.0])) == "tensor([1., 2.])" and repr(glade.tensor(3)) == "tensor(3)"
    assert repr(glade.tensor([1.0, float("nan"), -float("nan")])) == "tensor([ 1., nan, nan])"
    assert repr(glade.zeros(2, 2)) == "tensor([[0., 0.],\n        [0., 0.]])"
    assert repr(glade.zeros(1, dtype="float64", requires_grad=True)) == "tensor([0.], dtype=float64, requires_grad=True)"
    assert repr(glade.zeros(1, requires_grad=True) * 2).endswith(", grad_fn=<multiply>)")
    assert repr(glade.zeros(3, 0)) == "tensor([], shape=(3, 0))" and repr(glade.zeros(0, dtype="int64")) == "tensor([], dtype=int64)"
    assert repr(glade.zeros(100, 100)).endswith("shape=(100, 100))") and len(repr(glade.zeros(100, 100))) < 500
    assert f"{glade.tensor(1.25):.1f} {glade.tensor(7):03d} {glade.tensor(True)}" == "1.2 007 True"
    assert f"{glade.ones(2)}" == str(glade.ones(2))
    with pytest.raises(TypeError):
        f"{glade.ones(2):.1f}"
    assert repr(glade.float32) == "glade.float32"
    assert repr(glade.Device("cpu")) == "glade.Device('cpu')"


def test_conversion_to_numbers():
    assert float(glade.tensor(2.5)) == 2.5 and int(glade.tensor(2.5)) == 2 and bool(glade.tensor([1]))
    assert glade.tensor([[3]]).item() == 3 and isinstance(glade.tensor(3).item(), int)
    assert isinstance(glade.tensor(True).item(), bool) and isinstance(glade.tensor(1.0).item(), float)
    assert [10, 20, 30][glade.tensor(1)] == 20
    with pytest.raises(glade.ShapeError):
        glade.ones(2).item()
    with pytest.raises(ValueError):
        bool(glade.ones(2))
    with pytest.raises(TypeError):
        [1][glade.tensor(0.0)]


def test_iteration():
    rows = list(glade.tensor([[1, 2], [3, 4]]))
    assert [r.tolist() for r in rows] == [[1, 2], [3, 4]]
    assert [(a.item(), b.item()) for a, b in glade.tensor([[1, 2], [3, 4]])] == [(1, 2), (3, 4)]
    with pytest.raises(TypeError):
        iter(glade.tensor(1.0))
    with pytest.raises(TypeError):
        len(glade.tensor(1.0))


@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow])
def test_arithmetic(op, rng, device):
    a, b = rng.uniform(0.5, 2, (3, 4)), rng.uniform(0.5, 2, (4,))
    x, y = glade.tensor(a, device=device), glade.tensor(b, device=device)
    np.testing.assert_allclose(to_numpy(op(x, y)), op(a, b), rtol=1e-14)
    np.testing.assert_allclose(to_numpy(op(x, 2)), op(a, 2), rtol=1e-14)
    np.testing.assert_allclose(to_numpy(op(2, x)), op(2, a), rtol=1e-14)
    np.testing.assert_allclose(to_numpy(op(x, 1.5)), op(a, 1.5), rtol=1e-14)
    np.testing.assert_allclose(to_numpy(op(x, np.float64(1.5))), op(a, 1.5), rtol=1e-14)
    np.testing.assert_allclose(to_numpy(op(np.float64(1.5), x)), op(1.5, a), rtol=1e-14)
    if device == "cpu":
        np.testing.assert_allclose(to_numpy(op(x, b)), op(a, b), rtol=1e-14)
        mixed = op(a, y)
        assert isinstance(mixed, glade.Tensor)
        np.testing.assert_allclose(to_numpy(mixed), op(a, b), rtol=1e-14)


@pytest.mark.parametrize("op", [operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge])
def test_comparisons(op, device):
    a, b = np.array([1, 2, 3]), np.array([3, 2, 1])
    x, y = glade.tensor(a, device=device), glade.tensor(b, device=device)
    assert op(x, y).dtype is glade.bool
    np.testing.assert_array_equal(to_numpy(op(x, y)), op(a, b))
    np.testing.assert_array_equal(to_numpy(op(x, 2)), op(a, 2))
    np.testing.assert_array_equal(to_numpy(op(2, x)), op(2, a))


def test_comparison_with_other_things():
    x = glade.ones(2)
    assert (x == None) is False and (x != "text") is True  # noqa: E711
    with pytest.raises(TypeError):
        x < "text"


def test_logic():
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
    x, y = glade.tensor(a), glade.tensor(b)
    for op in [operator.and_, operator.or_, operator.xor]:
        np.testing.assert_array_equal(to_numpy(op(x, y)), op(a, b))
        np.testing.assert_array_equal(to_numpy(op(x, True)), op(a, True))
    np.testing.assert_array_equal(to_numpy(~x), ~a)
    with pytest.raises(glade.DTypeError):
        ~glade.tensor([1.0])


def test_unary_operators_and_matmul(rng):
    a, b = rng.normal(size=(2, 3)), rng.normal(size=(3, 4))
    x, y = glade.tensor(a), glade.tensor(b)
    np.testing.assert_array_equal(to_numpy(-x), -a)
    np.testing.assert_array_equal(to_numpy(abs(x)), abs(a))
    assert (+x).is_same(x)
    np.testing.assert_allclose(to_numpy(x @ y), a @ b, rtol=1e-13)
    np.testing.assert_allclose(to_numpy(x @ b), a @ b, rtol=1e-13)


def test_promotion():
    assert (glade.ones(1, dtype="int32") + 1.5).dtype is glade.float32
    assert (glade.ones(1, dtype="bfloat16") * 2.0).dtype is glade.bfloat16
    assert (glade.ones(1, dtype="float32") + glade.ones(1, dtype="float64")).dtype is glade.float64
    assert (glade.ones(1, dtype="uint8") + 1).dtype is glade.uint8
    assert (glade.tensor([1]) / 2).dtype is glade.float32


def test_unknown_operands():
    for wrong in ["text", None, [1], object()]:
        with pytest.raises(TypeError):
            glade.ones(1) + wrong
    with pytest.raises(OverflowError):
        glade.tensor([1]) + 2**70


def test_in_place():
    x = glade.ones(3)
    same = x
    x += 2
    x -= glade.tensor([1.0, 2.0, 3.0])
    x *= 4
    x /= 2
    assert x.is_same(same) and same.tolist() == [4.0, 2.0, 0.0]
    assert x.add_(glade.ones(3), alpha=3).multiply_(2).tolist() == [14.0, 10.0, 6.0]
    assert x.copy_(glade.tensor([1, 2, 3])).tolist() == [1.0, 2.0, 3.0]
    assert x.fill_(5).tolist() == [5.0, 5.0, 5.0] and x.zero_().tolist() == [0.0, 0.0, 0.0]
    integers = glade.ones(2, dtype="int32")
    with pytest.raises(glade.DTypeError):
        integers += 0.5
    with pytest.raises(glade.DTypeError):
        integers /= 2
    with pytest.raises(glade.ShapeError):
        x += glade.ones(2, 3)


def test_in_place_and_the_tape():
    leaf = glade.ones(2, requires_grad=True)
    with pytest.raises(glade.AutogradError):
        leaf += 1
    with glade.no_grad():
        leaf += 1
    assert leaf.tolist() == [2.0, 2.0]
    total = 0
    for factor in [1.0, 2.0]:
        total += (leaf * factor).sum()  # recorded: a new tensor each time
    total.backward()
    assert leaf.grad.tolist() == [3.0, 3.0]


def test_conversions(device):
    x = glade.tensor([0.0, 1.5, -2.7], device=device)
    assert x.to("int32").tolist() == [0, 1, -2] and x.bool().tolist() == [False, True, True]
    assert x.to(glade.float32).is_same(x) and x.to(device).is_same(x)
    assert x.double().dtype is glade.float64 and x.half().dtype is glade.float16 and x.bfloat16().dtype is glade.bfloat16
    assert x.to(device, "float64").dtype is glade.float64 and x.to(glade.float16, device).dtype is glade.float16
    assert x.long().dtype is glade.int64 and x.int().dtype is glade.int32 and x.cpu().device == "cpu"


@pytest.mark.parametrize("dtype", DTYPES)
def test_pickle_and_copy(dtype, device):
    x = glade.tensor([[0, 1], [1, 0]], dtype=dtype, device=device).T
    for y in [pickle.loads(pickle.dumps(x)), copy.deepcopy(x)]:
        assert y.dtype is dtype and y.device == x.device and y.tolist() == x.tolist() and not y.is_same(x)
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert pickle.loads(pickle.dumps(x.device)) == x.device
    parameter = glade.ones(2, requires_grad=True)
    assert pickle.loads(pickle.dumps(parameter)).requires_grad


def test_tensors_die_when_let_go_of():
    gc.disable()
    try:
        x = glade.ones(2, requires_grad=True)
        y = (x * 2).exp()
        alive = [weakref.ref(x), weakref.ref(y)]
        y.sum().backward()
        del x, y
        assert all(ref() is None for ref in alive)
    finally:
        gc.enable()


def test_hash_and_identity():
    x, y = glade.ones(2), glade.ones(2)
    assert len({x, y}) == 2 and {x: 1}[x] == 1
    assert x.is_same(x) and not x.is_same(y)
    with pytest.raises(TypeError):
        glade.Tensor()

"""Reading and writing by index, against NumPy."""

import numpy as np
import pytest
from conftest import to_numpy

import glade

try:
    import torch
except ImportError:
    torch = None

S = np.s_
BASIC = [
    S[0], S[-1], S[1, 2], S[1, 2, 3], S[:], S[1:], S[:, 1:3], S[:, ::2], S[::-1], S[:, 3:0:-2], S[5:1], S[-100:100], S[..., 0],
    S[0, ..., 1], S[...], S[None], S[:, None, 1], S[..., None], S[1:, None, ::2, -1], S[np.int64(1)], S[:, np.int32(-1)], S[()],
]  # fmt: skip
INDEX = np.array([[1, 0], [-1, 1]])
ADVANCED = [
    S[INDEX], S[:, INDEX], S[..., INDEX], S[INDEX, 1], S[1, INDEX], S[:, [0, 2]], S[[]], S[INDEX, :, np.array([[0, 1], [2, 3]])],
    S[np.array([0, 1]), np.array([2, 0])], S[np.array([[0], [1]]), np.array([2, 0, 1])],
    S[:, np.array([1]), np.array([2, 3])], S[::-1, np.array([1, 0])], S[None, np.array([1, 0])], S[np.array(1)],
    S[np.array([True, False])], S[np.arange(24).reshape(2, 3, 4) % 3 == 0], S[:, np.array([[True] * 4, [False] * 4, [True] * 4])],
    S[np.array([False, False])], S[1, np.array([True, False, True])], S[np.array([True, True]), np.array([2, 0])],
]  # fmt: skip


def as_glade(key, device):
    """The key with its arrays as tensors."""
    if isinstance(key, tuple):
        return tuple(as_glade(k, device) for k in key)
    return glade.tensor(key, device=device) if isinstance(key, np.ndarray) else key


@pytest.mark.parametrize("key", BASIC + ADVANCED, ids=str)
def test_read(key, device):
    a = np.arange(24.0).reshape(2, 3, 4)
    x = glade.tensor(a, device=device)
    got = x[as_glade(key, device)]
    assert got.shape == a[key].shape
    np.testing.assert_array_equal(to_numpy(got), a[key])
    np.testing.assert_array_equal(to_numpy(x[key]), a[key])  # NumPy's arrays index too


@pytest.mark.parametrize("key", BASIC + ADVANCED, ids=str)
def test_write(key, device):
    a = np.arange(24.0).reshape(2, 3, 4)
    x = glade.tensor(a, device=device)
    values = 100 + np.arange(a[key].size, dtype=float).reshape(a[key].shape)
    a[key] = values
    x[as_glade(key, device)] = glade.tensor(values, device=device)
    np.testing.assert_array_equal(to_numpy(x), a)
    a[key] = -1
    x[as_glade(key, device)] = -1
    np.testing.assert_array_equal(to_numpy(x), a)


PAIR = np.array([1, 0])
SELECTED = [
    (S[0, :, PAIR], lambda a: a[0][:, PAIR]), (S[1, None, PAIR], lambda a: a[1][None, PAIR]), (S[PAIR, :, 2], lambda a: a[..., 2][PAIR]),
    (S[None, 1, :, PAIR], lambda a: a[1][None][..., PAIR]), (S[:, PAIR, None, 3], lambda a: a[..., 3][:, PAIR, None]),
    (S[np.array(1), :, PAIR], lambda a: a[1][:, PAIR]), (S[:, PAIR, None, np.array(3)], lambda a: a[..., 3][:, PAIR, None]),
    (S[PAIR, :, np.array(2)], lambda a: a[..., 2][PAIR]), (S[np.array(1), :, np.array(2)], lambda a: a[1, :, 2]),
    (S[PAIR, np.array(2), PAIR], lambda a: a[:, 2][PAIR, PAIR]), (S[PAIR, PAIR, ..., PAIR], lambda a: a[PAIR, PAIR, PAIR]),
]  # fmt: skip


@pytest.mark.parametrize("key, expected", SELECTED, ids=lambda value: str(value) if isinstance(value, tuple) else "")
def test_integers_select_before_tensors_index(key, expected, device):
    a = np.arange(24.0).reshape(2, 3, 4)
    x = glade.tensor(a, device=device)
    key = as_glade(key, device)
    np.testing.assert_array_equal(to_numpy(x[key]), expected(a))
    numbers = glade.arange(24, device=device).reshape(2, 3, 4)[key]
    x[key] = numbers * 10.0
    places = to_numpy(numbers).astype(int)
    np.testing.assert_array_equal(to_numpy(x).reshape(-1)[places], places * 10.0)
    assert (to_numpy(x) != a).sum() == np.count_nonzero(places)
    if torch is not None and device == "cpu":
        theirs = torch.tensor(a)[tuple(torch.tensor(k.numpy()) if isinstance(k, glade.Tensor) else k for k in key)]
        np.testing.assert_array_equal(to_numpy(glade.tensor(a)[key]), theirs.numpy())


def test_basic_reads_are_views():
    x = glade.zeros(3, 4)
    x[1][2] = 5
    x[:, 0] += 1
    assert x.tolist() == [[1, 0, 0, 0], [1, 0, 5, 0], [1, 0, 0, 0]]


def test_last_write_wins():
    x = glade.zeros(3)
    x[glade.tensor([1, 1, 1])] = glade.tensor([1.0, 2.0, 3.0])
    assert x.tolist() == [0, 3, 0]


def test_comparison_masks():
    x = glade.tensor([1.0, float("nan"), -3.0])
    x[x != x] = 0
    x[x < 0] = glade.tensor([7.0])
    assert x.tolist() == [1, 0, 7]


@pytest.mark.parametrize("key", [S[:, 1], S[::-1], INDEX, S[:, np.array([0, 0, 2])], np.arange(24).reshape(2, 3, 4) % 3 == 0], ids=str)
def test_gradient(key, device):
    x = glade.randn(2, 3, 4, dtype="float64", device=device, requires_grad=True)
    assert glade.autograd.gradcheck(lambda x: x[as_glade(key, device)], x)


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (2, IndexError), (-3, IndexError), (S[0, 0, 0, 0], IndexError), (S[..., ...], IndexError), (S[0, 3], IndexError),
        (np.array([0, 2]), IndexError), (np.array([-3]), IndexError), (np.array([True] * 3), IndexError), (S[np.zeros((2, 2), bool)], IndexError),
        (1.0, TypeError), ("a", TypeError), (np.array([0.5]), IndexError), (S[np.array([0, 1]), np.array([0, 1, 2])], ValueError),
        (S[::0], ValueError),
    ],
    ids=str,
)  # fmt: skip
def test_errors(key, error):
    x = glade.zeros(2, 3, 4)
    with pytest.raises(error):
        x[key]
    with pytest.raises(error):
        x[key] = 1
    assert x.sum().item() == 0


def test_write_errors():
    x = glade.zeros(2, 3)
    with pytest.raises(ValueError):
        x[0] = glade.ones(2)
    with pytest.raises(ValueError):
        x[glade.tensor([0, 1])] = glade.ones(4)
    with pytest.raises(TypeError):
        glade.zeros(2, dtype="int32")[0] = 0.5
    with pytest.raises(TypeError):
        del x[0]
    leaf = glade.zeros(2, requires_grad=True)
    with pytest.raises(glade.AutogradError):
        leaf[0] = 1
    with glade.no_grad():
        leaf[0] = 1
    assert leaf.tolist() == [1, 0]


def test_writes_from_the_same_memory():
    x = glade.arange(6)
    x[1:] = x[:-1]
    assert x.tolist() == [0, 0, 1, 2, 3, 4]
    x[::-1] = x
    assert x.tolist() == [4, 3, 2, 1, 0, 0]
    x -= x[2]
    assert x.tolist() == [2, 1, 0, -1, -2, -2]
    with pytest.raises(ValueError, match="the target of shape \\[2, 3\\] is expanded"):
        glade.zeros(1, 3).expand(2, 3)[:] = 1


def test_numbers_that_integers_cannot_hold():
    x = glade.zeros(2, dtype="uint8")
    for write in (lambda: x.__setitem__(0, 300), lambda: glade.tensor([1, 256], dtype="uint8"), lambda: x + 256):
        with pytest.raises(ValueError, match="does not fit in uint8"):
            write()
    assert x.tolist() == [0, 0]
    assert (x > -1).tolist() == [True, True]

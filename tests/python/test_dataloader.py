"""DataLoader: batches of tensors, arrays and items of one's own, shuffled and by worker threads."""

import collections
import threading
import time

import numpy as np
import pytest

import glade
from glade.data import DataLoader, Dataset, Subset, TensorDataset, collate, random_split


class Squares(Dataset):
    def __init__(self, count, fail_at=None, pause=0.0):
        self.count, self.fail_at, self.pause, self.threads = count, fail_at, pause, set()

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.threads.add(threading.get_ident())
        time.sleep(self.pause * (index % 3))
        if index == self.fail_at:
            raise KeyError(f"item {index}")
        return np.float32(index), index**2


def values(loader):
    return [[part.tolist() for part in batch] for batch in loader]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches(workers):
    loader = DataLoader(Squares(7), batch_size=3, num_workers=workers)
    assert values(loader) == [[[0, 1, 2], [0, 1, 4]], [[3, 4, 5], [9, 16, 25]], [[6], [36]]] and len(loader) == 3
    assert next(iter(loader))[0].dtype is glade.float32 and next(iter(loader))[1].dtype is glade.int64
    assert values(DataLoader(Squares(7), batch_size=3, num_workers=workers, drop_last=True)) == values(loader)[:2]
    assert values(DataLoader(Squares(2), 5, num_workers=workers)) == [[[0, 1], [0, 1]]] and values(DataLoader(Squares(0), 5, num_workers=workers)) == []


def test_threads_keep_the_order():
    data = Squares(40, pause=0.002)
    assert values(DataLoader(data, 4, num_workers=3)) == values(DataLoader(Squares(40), 4))
    assert len(data.threads) > 1 and threading.get_ident() not in data.threads


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_reach_the_loop(workers):
    loader = DataLoader(Squares(20, fail_at=9), 4, num_workers=workers)
    seen = []
    with pytest.raises(KeyError, match="item 9"):
        for x, _ in loader:
            seen.append(x.tolist())
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_loop_that_is_left_early_leaves_no_threads():
    def running():
        return [thread for thread in threading.enumerate() if thread.name.startswith("glade.data.DataLoader")]

    for _ in DataLoader(Squares(1000, pause=0.001), 4, num_workers=2):
        assert running()
        break
    for _ in range(100):
        if not running():
            break
        time.sleep(0.05)
    assert not running()


@pytest.mark.parametrize("workers", [0, 2])
def test_shuffling(workers):
    def epoch(loader):
        return [i for batch in loader for i in batch[0].tolist()]

    def make(seed):
        return DataLoader(Squares(50), 8, shuffle=True, seed=seed, num_workers=workers)

    loader = make(3)
    first, second = epoch(loader), epoch(loader)
    assert sorted(first) == list(range(50)) == sorted(second) and first != second != list(range(50))
    again = make(3)
    assert epoch(again) == first and epoch(again) == second and epoch(make(4)) != first
    again.epoch = 1
    assert epoch(again) == second
    orders = []
    for seed in (1, 1, 2):  # without a seed of its own, glade's
        glade.manual_seed(seed)
        loader = make(None)
        orders.append((epoch(loader), epoch(loader)))
    assert orders[0] == orders[1] != orders[2] and orders[0][0] != orders[0][1]


@pytest.mark.parametrize("workers", [0, 2])
def test_tensors(device, workers):
    x, y = glade.randn(10, 3), np.arange(10)
    data = TensorDataset(x.to(device), y)
    assert len(data) == 10 and data[2][0].tolist() == x[2].tolist() and data[-1][1].item() == 9
    loader = DataLoader(data, 4, shuffle=True, seed=0, num_workers=workers, device=device)
    rows = [(row, int(i)) for a, b in loader for row, i in zip(a.tolist(), b.tolist())]
    assert all(row == x[i].tolist() for row, i in rows) and sorted(i for _, i in rows) == list(range(10))
    assert all(part.device == device for batch in loader for part in batch)
    with pytest.raises(glade.ValueError, match=r"lengths \[10, 3\], expected equal"):
        TensorDataset(x, glade.zeros(3))


def test_collate():
    Point = collections.namedtuple("Point", "x y")
    batch = collate([{"a": glade.ones(2), "b": (1, 2.0), "name": "one", "p": Point(1, True)}, {"a": glade.zeros(2), "b": (3, 4.0), "name": "two", "p": Point(2, False)}])
    assert batch["a"].tolist() == [[1, 1], [0, 0]] and batch["name"] == ["one", "two"] and isinstance(batch["b"], tuple)
    assert batch["b"][0].tolist() == [1, 3] and batch["b"][1].dtype is glade.float32 and batch["p"].x.tolist() == [1, 2]
    assert batch["p"].y.dtype is glade.bool
    assert collate([np.ones((2, 2)), np.zeros((2, 2))]).shape == (2, 2, 2) and collate([np.int64(1), np.int64(2)]).tolist() == [1, 2]
    with pytest.raises(glade.ValueError, match="collate: the items have"):
        collate([(1, 2), (1,)])
    loader = DataLoader(["a", "bc"], 2, collate_fn=lambda items: [len(item) for item in items])
    assert list(loader) == [[1, 2]]


def test_parts_of_data():
    data = list(range(10))
    assert list(Subset(data, [3, 1])) == [3, 1] and len(Subset(data, [3, 1])) == 2
    parts = random_split(data, [7, 3], seed=0)
    assert sorted(list(parts[0]) + list(parts[1])) == data and list(random_split(data, [7, 3], seed=0)[0]) == list(parts[0])
    assert [len(part) for part in random_split(data, [0.75, 0.25])] == [8, 2]
    with pytest.raises(glade.ValueError, match="expected a sum of 10"):
        random_split(data, [5, 3])
    with pytest.raises(ValueError, match="lengths are"):
        random_split(data, [12, -2])


def test_arguments():
    for name, value in [("batch_size", 0), ("num_workers", -1), ("prefetch_factor", 0)]:
        with pytest.raises(glade.ValueError, match=f"DataLoader: {name} is {value}, expected at least"):
            DataLoader([1], **{name: value})
    assert repr(DataLoader([1, 2], 2, shuffle=True)) == "DataLoader(list of 2 items, batch_size=2, shuffle=True, num_workers=0)"


def test_training():
    x = glade.randn(64, 2)
    loader = DataLoader(TensorDataset(x, (x @ glade.tensor([[2.0], [-1.0]]))), 16, shuffle=True, num_workers=2, seed=1)
    model = glade.nn.Linear(2, 1)
    optimizer = glade.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(30):
        for inputs, targets in loader:
            loss = glade.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert loss.item() < 1e-3

"""Data sets in memory or computed item by item, and batches of them assembled by worker threads."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # functions import these when they need them: `import glade` takes a third of the time
    from concurrent.futures import Future

    import numpy as np

from glade._glade import Tensor, ValueError as _ValueError, as_tensor, default_generator, stack

__all__ = ["DataLoader", "Dataset", "Subset", "TensorDataset", "collate", "random_split"]


class Dataset:
    """Items by their numbers: a class derives from it and has __len__ and __getitem__. Any sequence serves as well."""

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError


class TensorDataset(Dataset):
    """Items (x[i], y[i], ...) of tensors or arrays of one length (ValueError), of which DataLoader takes whole batches at once."""

    def __init__(self, *tensors: Any) -> None:
        self.tensors = tuple(as_tensor(x) for x in tensors)
        lengths = {len(x) for x in self.tensors}
        if len(lengths) != 1:
            raise _ValueError(f"TensorDataset: the tensors have lengths {[len(x) for x in self.tensors]}, expected equal ones")

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(x[index] for x in self.tensors)

    def __repr__(self) -> str:
        return f"TensorDataset({len(self)} items of shapes {', '.join(str(x.shape[1:]) for x in self.tensors)})"


class Subset(Dataset):
    """The items of a data set at some positions."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, list(indices)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    def __repr__(self) -> str:
        return f"Subset({len(self)} of {len(self.dataset)} items)"


def _random(seed: int | None) -> np.random.Generator:
    import numpy as np

    if seed is None:  # from glade's own numbers, which manual_seed determines
        generator = default_generator()
        first, drawn = generator.state
        generator.state = (first, drawn + 1)
        return np.random.default_rng([first, drawn])
    return np.random.default_rng(seed)


def random_split(dataset: Any, lengths: Sequence[float], seed: int | None = None) -> list[Subset]:
    """Subsets of these lengths, or shares of 1, with items at random. ValueError unless none is negative and they add up to the data set's length."""
    count = len(dataset)
    if abs(sum(lengths) - 1) < 1e-9 and any(isinstance(length, float) for length in lengths):
        sizes = [int(length * count) for length in lengths]
        for i in range(count - sum(sizes)):
            sizes[i % len(sizes)] += 1
    else:
        sizes = [int(length) for length in lengths]
    if sum(sizes) != count or min(sizes, default=0) < 0:
        raise _ValueError(f"random_split: lengths are {list(lengths)}, expected a sum of {count} or shares of 1")
    order = _random(seed).permutation(count).tolist()
    ends = itertools.accumulate(sizes)
    return [Subset(dataset, order[end - size : end]) for end, size in zip(ends, sizes)]


def collate(items: Sequence[Any]) -> Any:
    """A batch of items: tensors and arrays are stacked, numbers become a tensor, tuples and dicts are gone into, all else stays a list."""
    import numpy as np

    first = items[0]
    if isinstance(first, Tensor):
        return stack(list(items))
    if isinstance(first, (np.ndarray, np.generic)):
        return as_tensor(np.stack(items))
    if isinstance(first, (bool, int, float)):
        return as_tensor(list(items))
    if isinstance(first, Mapping):
        return {name: collate([item[name] for item in items]) for name in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(collate(column) for column in zip(*items)))
    if isinstance(first, (tuple, list)):
        if any(len(item) != len(first) for item in items):
            raise _ValueError(f"collate: the items have {sorted({len(item) for item in items})} parts, expected equal numbers")
        return type(first)(collate(column) for column in zip(*items))
    return list(items)


def _to(batch: Any, device: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: _to(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_to(value, device) for value in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(_to(value, device) for value in batch)
    return batch


class DataLoader:
    """Batches of a data set: anything with __len__ and __getitem__. Each `for` over it is an epoch.

    With shuffle the order is a function of seed and epoch (of glade.manual_seed where seed is None). With num_workers > 0 so many threads
    read items and collate batches, prefetch_factor batches each ahead, in the same order as without; an error in one reaches the loop at
    its batch. Threads, not processes: items may be anything, and NumPy, glade and reading files release the interpreter lock. `device`
    moves batches there. ValueError for arguments out of range.

    >>> import glade
    >>> data = glade.data.TensorDataset(glade.arange(5), glade.arange(5) * 2)
    >>> [(x.tolist(), y.tolist()) for x, y in glade.data.DataLoader(data, batch_size=2)]
    [([0, 1], [0, 2]), ([2, 3], [4, 6]), ([4], [8])]
    """

    def __init__(
        self, dataset: Any, batch_size: int = 1, shuffle: bool = False, *, num_workers: int = 0, collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False, seed: int | None = None, prefetch_factor: int = 2, device: Any = None,
    ) -> None:  # fmt: skip
        for name, value, least in (("batch_size", batch_size, 1), ("num_workers", num_workers, 0), ("prefetch_factor", prefetch_factor, 1)):
            if value < least:
                raise _ValueError(f"DataLoader: {name} is {value}, expected at least {least}")
        self.dataset, self.batch_size, self.shuffle, self.num_workers = dataset, batch_size, shuffle, num_workers
        self.collate_fn, self.drop_last, self.seed, self.prefetch_factor, self.device = collate_fn, drop_last, seed, prefetch_factor, device
        self.epoch = 0  #: the number of the next epoch, on which its order depends; set it to go on where a run ended

    def __len__(self) -> int:
        count = len(self.dataset)
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __repr__(self) -> str:
        options = f"batch_size={self.batch_size}, shuffle={self.shuffle}, num_workers={self.num_workers}"
        return f"DataLoader({type(self.dataset).__name__} of {len(self.dataset)} items, {options})"

    def _order(self) -> list[np.ndarray[Any, Any]]:
        import numpy as np

        count = len(self.dataset)
        order = np.arange(count)
        if self.shuffle:
            random = np.random.default_rng([self.seed, self.epoch]) if self.seed is not None else _random(None)
            order = random.permutation(count)
        self.epoch += 1
        return [order[i * self.batch_size : (i + 1) * self.batch_size] for i in range(len(self))]

    def _load(self, positions: np.ndarray[Any, Any]) -> Any:
        if type(self.dataset) is TensorDataset and self.collate_fn is None:
            return tuple(x[as_tensor(positions).to(x.device)] for x in self.dataset.tensors)
        return (self.collate_fn or collate)([self.dataset[i] for i in positions.tolist()])

    def __iter__(self) -> Iterator[Any]:
        order = self._order()
        batches = self._ahead(order) if self.num_workers > 0 else map(self._load, order)
        # On the thread that uses them: on a GPU its stream then has the copy before what reads the batch.
        return batches if self.device is None else (_to(batch, self.device) for batch in batches)

    def _ahead(self, batches: list[np.ndarray[Any, Any]]) -> Iterator[Any]:
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(self.num_workers, "glade.data.DataLoader")
        waiting: collections.deque[Future[Any]] = collections.deque()
        try:
            remaining = iter(batches)
            for positions in remaining:
                waiting.append(pool.submit(self._load, positions))
                if len(waiting) == self.num_workers * self.prefetch_factor:
                    break
            while waiting:
                batch = waiting.popleft().result()
                for positions in remaining:
                    waiting.append(pool.submit(self._load, positions))
                    break
                yield batch
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

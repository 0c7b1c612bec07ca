"""Token files, and batches of them assembled on a background thread (docs/data.md describes both); other data sets and DataLoader.

>>> import glade, os, tempfile
>>> path = os.path.join(tempfile.mkdtemp(), "numbers.bin")
>>> with glade.data.TokenWriter(path, vocab_size=10, separator=9) as writer:
...     for document in [1, 2, 3], [4, 5]:
...         writer.write(document)
...         writer.end_document()
>>> data = glade.data.TokenData(path)
>>> data.read(0, len(data)).tolist()
[1, 2, 3, 9, 4, 5, 9]
>>> loader = glade.data.Loader(data, batch_size=1, seq_len=6, packed=True)
>>> batch = next(loader)
>>> batch.inputs.tolist(), batch.targets.tolist(), batch.cu_seqlens.tolist()
([[1, 2, 3, 9, 4, 5]], [[2, 3, 9, -100, 5, 9]], [0, 4, 6])
"""

from glade._dataset import DataLoader, Dataset, Subset, TensorDataset, collate, random_split
from glade._glade._data import Batch, Loader, TokenData, TokenWriter, make_batch

__all__ = [
    "Batch", "DataLoader", "Dataset", "Loader", "Subset", "TensorDataset", "TokenData", "TokenWriter", "collate", "make_batch", "random_split",
]  # fmt: skip

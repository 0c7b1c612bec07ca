"""For programs that open glade's files with h5py: bfloat16, which HDF5 has no name for.

glade stores it as a floating-point type of 16 bits with 8 exponent bits (docs/checkpoint_format.md). h5py reads such a dataset
as float32, which holds every value; these functions keep it bfloat16, in arrays of ml_dtypes.

>>> import glade, h5py
>>> from glade import hdf5
>>> glade.save(glade.nn.Linear(2, 2, bias=False).bfloat16(), "model.h5")
>>> with h5py.File("model.h5", "r+") as file:
...     weight = hdf5.read(file["model/weight"])
...     copy = hdf5.create_dataset(file, "model/copy", weight)
...     print(weight.dtype, hdf5.is_bfloat16(copy))
bfloat16 True
"""

from __future__ import annotations

from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np

__all__ = ["bfloat16_type", "create_dataset", "is_bfloat16", "read"]


def bfloat16_type() -> h5py.h5t.TypeFloatID:
    """The HDF5 type of glade's bfloat16 datasets."""
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)  # sign, exponent and its size, mantissa and its size
    kind.set_precision(16)
    kind.set_size(2)
    kind.set_ebias(127)
    return kind


def is_bfloat16(dataset: h5py.Dataset) -> bool:
    """Whether the elements of a dataset have glade's bfloat16 type."""
    return bool(dataset.id.get_type() == bfloat16_type())


def read(dataset: h5py.Dataset) -> np.ndarray[Any, Any]:
    """All values: of a bfloat16 dataset as ml_dtypes.bfloat16 (`.astype("float32")` converts them), else as h5py reads them."""
    if not is_bfloat16(dataset):
        return np.asarray(dataset[()])
    import ml_dtypes

    bits = np.empty(dataset.shape, "<u2")
    dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, bits, dataset.id.get_type())
    return bits.view(ml_dtypes.bfloat16)


def create_dataset(group: h5py.Group, name: str, values: np.ndarray[Any, Any]) -> h5py.Dataset:
    """Stores an array, of ml_dtypes.bfloat16 as glade's bfloat16, with checksums as glade writes them."""
    if values.dtype.name != "bfloat16":
        return group.create_dataset(name, data=values, fletcher32=values.size > 0 and values.ndim > 0 or None)
    kind, chunked = bfloat16_type(), values.size > 0 and values.ndim > 0
    dataset = group.create_dataset(
        name, values.shape, h5py.Datatype(kind), chunks=chunked or None, fletcher32=chunked or None
    )
    if values.size > 0:
        dataset.id.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(values).view("<u2"), kind)
    return dataset

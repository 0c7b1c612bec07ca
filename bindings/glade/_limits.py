"""What numbers a dtype holds."""

from __future__ import annotations

from typing import Any

from glade._glade import DType, DTypeError, zeros

_BITS = {"float64": (1024, 52), "float32": (128, 23), "bfloat16": (128, 7), "float16": (16, 10)}  # above the largest exponent, fraction


def _dtype_of(dtype: Any) -> DType:
    return dtype if isinstance(dtype, DType) else zeros(0, dtype=dtype).dtype


class finfo:
    """The limits of a floating-point dtype: max, min (the lowest number), eps (from 1 to the next number), tiny (the smallest normal
    number), bits. DTypeError for other dtypes.

    >>> import glade
    >>> glade.finfo(glade.float32).max
    3.4028234663852886e+38
    """

    def __init__(self, dtype: Any) -> None:
        self.dtype = _dtype_of(dtype)
        if self.dtype.name not in _BITS:
            raise DTypeError(f"finfo: dtype is {self.dtype.name}, expected floating point (iinfo takes integers)")
        exponent, fraction = _BITS[self.dtype.name]
        self.eps = 2.0**-fraction
        self.max = (2 - self.eps) * 2.0 ** (exponent - 1)
        self.min = -self.max
        self.tiny = 2.0 ** (2 - exponent)
        self.bits = 8 * self.dtype.itemsize

    def __repr__(self) -> str:
        return f"finfo(min={self.min}, max={self.max}, eps={self.eps}, tiny={self.tiny}, dtype={self.dtype.name})"


class iinfo:
    """The limits of an integer dtype: min, max, bits. DTypeError for other dtypes.

    >>> import glade
    >>> glade.iinfo(glade.uint8).max
    255
    """

    def __init__(self, dtype: Any) -> None:
        self.dtype = _dtype_of(dtype)
        if self.dtype.name not in ("int64", "int32", "uint8"):
            raise DTypeError(f"iinfo: dtype is {self.dtype.name}, expected integers (finfo takes floating point)")
        self.bits = 8 * self.dtype.itemsize
        self.min = 0 if self.dtype.name == "uint8" else -(2 ** (self.bits - 1))
        self.max = self.min + 2**self.bits - 1

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype.name})"

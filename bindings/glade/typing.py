"""Types for annotations."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, Union, runtime_checkable

from glade._glade import Device, DType, Tensor


@runtime_checkable
class SupportsDLPack(Protocol):
    """An array of any library with DLPack."""

    def __dlpack__(self, *, stream: Any = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, int]: ...


class ValuesAndIndices(NamedTuple):
    """Elements along a dimension, and their int64 positions in it."""

    values: Tensor
    indices: Tensor


#: A tensor, a NumPy array, or any array with DLPack.
ArrayLike = Union[Tensor, SupportsDLPack]
#: An element type: glade's, NumPy's, or its name.
DTypeLike = Union[DType, str, type, Any]
#: A device or its name.
DeviceLike = Union[Device, str]
#: The sizes of a tensor's dimensions.
Shape = Union[int, Sequence[int]]

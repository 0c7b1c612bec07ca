"""Types for annotations."""

from typing import Any, Protocol, Union, runtime_checkable

from glade._glade import Tensor


@runtime_checkable
class SupportsDLPack(Protocol):
    """An array of any library with DLPack."""

    def __dlpack__(self, *, stream: Any = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, int]: ...


#: A tensor, a NumPy array, or any array with DLPack.
ArrayLike = Union[Tensor, SupportsDLPack]

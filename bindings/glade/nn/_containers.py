"""Modules made of modules."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from glade._glade import Tensor
from glade._glade._nn import Module


class ModuleList(Module):
    """Modules in a list, named "0", "1", ..., whose parameters are found."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self._items: list[Module] = []
        for module in modules:
            self.append(module)

    def append(self, module: Module) -> "ModuleList":
        """Adds a module at the end and returns the list. TypeError for anything else."""
        if not isinstance(module, Module):
            raise TypeError(f"ModuleList: expected a module, got {type(module).__name__}")
        setattr(self, str(len(self._items)), module)
        self._items.append(module)
        return self

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        return self._items[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)


class _Shown:
    """A function as it is printed, by its name."""

    def __init__(self, function: Any) -> None:
        self._name = getattr(function, "__name__", None) or repr(function)

    def __repr__(self) -> str:
        return self._name


class Sequential(Module):
    """Applies its parts one after the other: modules, named "0", "1", ..., and functions, which hold nothing.

    >>> import glade
    >>> from glade import nn
    >>> model = nn.Sequential(nn.Linear(2, 16), glade.tanh, nn.Linear(16, 1))
    >>> model(glade.zeros(4, 2)).shape
    (4, 1)
    """

    def __init__(self, *parts: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._parts = parts
        for i, part in enumerate(parts):
            if isinstance(part, Module):
                setattr(self, str(i), part)
            elif not callable(part):
                raise TypeError(f"Sequential: expected modules and functions, got {type(part).__name__}")

    def forward(self, x: Tensor) -> Tensor:
        """The last part's result."""
        for part in self._parts:
            x = part(x)
        return x

    def _parts_to_show(self) -> list[tuple[str, Any]]:
        return [(str(i), part if isinstance(part, Module) else _Shown(part)) for i, part in enumerate(self._parts)]

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: int) -> Any:
        return self._parts[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parts)

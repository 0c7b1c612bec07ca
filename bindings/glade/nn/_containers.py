"""Modules made of modules."""

from collections.abc import Callable, Iterable, Iterator, Mapping
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


class ModuleDict(Module):
    """Modules by name, whose parameters are found.

    >>> from glade import nn
    >>> heads = nn.ModuleDict({"left": nn.Linear(2, 1), "right": nn.Linear(2, 1)})
    >>> [name for name, _ in heads.named_parameters()]
    ['left.weight', 'left.bias', 'right.weight', 'right.bias']
    """

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        self._items: dict[str, Module] = {}
        self.update(modules or {})

    def update(self, modules: Mapping[str, Module]) -> None:
        """Sets several modules."""
        for name, module in modules.items():
            self[name] = module

    def __setitem__(self, name: str, module: Module) -> None:
        if not isinstance(module, Module):
            raise TypeError(f"ModuleDict: expected a module, got {type(module).__name__}")
        if name not in self._items and hasattr(type(self), name):
            raise ValueError(f"ModuleDict: '{name}' is the name of a method")
        setattr(self, name, module)
        self._items[name] = module

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def __delitem__(self, name: str) -> None:
        del self._items[name]
        delattr(self, name)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._items.keys()

    def values(self) -> Iterable[Any]:
        """The modules."""
        return self._items.values()

    def items(self) -> Iterable[tuple[str, Any]]:
        """(name, module) pairs."""
        return self._items.items()


class ParameterList(Module):
    """Parameters in a list, named "0", "1", ...; tensors without a gradient become parameters."""

    def __init__(self, parameters: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self._count = 0
        for parameter in parameters:
            self.append(parameter)

    def append(self, parameter: Tensor) -> "ParameterList":
        """Adds a parameter at the end and returns the list. TypeError for anything but a tensor."""
        if not isinstance(parameter, Tensor):
            raise TypeError(f"ParameterList: expected a tensor, got {type(parameter).__name__}")
        is_parameter = parameter.requires_grad and parameter.is_leaf
        setattr(self, str(self._count), parameter if is_parameter else parameter.detach().requires_grad_())
        self._count += 1
        return self

    def _position(self, index: int) -> str:
        if not -self._count <= index < self._count:
            raise IndexError(f"ParameterList: index {index} is out of range for {self._count} parameters")
        return str(index % self._count)

    def __getitem__(self, index: int) -> Tensor:
        parameter: Tensor = getattr(self, self._position(index))
        return parameter

    def __setitem__(self, index: int, parameter: Tensor) -> None:
        setattr(self, self._position(index), parameter)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(self._count))


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

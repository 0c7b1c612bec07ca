"""Modules made of modules."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from glade._glade import Tensor
from glade._glade._nn import Module


class ModuleList(Module):
    """Modules in a list, named "0", "1", ..., whose parameters are found."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)

    def append(self, module: Module) -> "ModuleList":
        """Adds a module at the end and returns the list. TypeError for anything else."""
        return self.extend([module])

    def extend(self, modules: Iterable[Module]) -> "ModuleList":
        """Adds modules at the end and returns the list. TypeError for anything else."""
        return self._set([*self.children(), *modules])

    def insert(self, index: int, module: Module) -> None:
        """Puts a module before that of the index; those behind it are renamed."""
        items = self.children()
        items.insert(index, module)
        self._set(items)

    def _set(self, items: list[Module]) -> "ModuleList":
        for module in items:
            if not isinstance(module, Module):
                raise TypeError(f"ModuleList: expected a module, got {type(module).__name__}")
        before = self.children()
        for i, module in enumerate(items):
            if i >= len(before) or before[i] is not module:
                setattr(self, str(i), module)
        return self

    def __len__(self) -> int:
        return len(self.children())

    def __getitem__(self, index: int | slice) -> Any:
        return ModuleList(self.children()[index]) if isinstance(index, slice) else self.children()[index]

    def __setitem__(self, index: int, module: Module) -> None:
        items = self.children()
        items[index] = module
        self._set(items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.children())


class ModuleDict(Module):
    """Modules by name, whose parameters are found.

    >>> from glade import nn
    >>> heads = nn.ModuleDict({"left": nn.Linear(2, 1), "right": nn.Linear(2, 1)})
    >>> [name for name, _ in heads.named_parameters()]
    ['left.weight', 'left.bias', 'right.weight', 'right.bias']
    """

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def _children(self) -> dict[str, Module]:
        return dict(self.named_children())

    def update(self, modules: Mapping[str, Module]) -> None:
        """Sets several modules."""
        for name, module in modules.items():
            self[name] = module

    def __setitem__(self, name: str, module: Module) -> None:
        if not isinstance(module, Module):
            raise TypeError(f"ModuleDict: expected a module, got {type(module).__name__}")
        if name not in self._children() and hasattr(type(self), name):
            raise ValueError(f"ModuleDict: '{name}' is the name of a method")
        setattr(self, name, module)

    def __getitem__(self, name: str) -> Any:
        return self._children()[name]

    def __delitem__(self, name: str) -> None:
        if name not in self._children():
            raise KeyError(name)
        delattr(self, name)

    def pop(self, name: str) -> Any:
        """Takes a module out and returns it. KeyError where there is none."""
        module = self[name]
        del self[name]
        return module

    def __len__(self) -> int:
        return len(self._children())

    def __iter__(self) -> Iterator[str]:
        return iter(self._children())

    def __contains__(self, name: object) -> bool:
        return name in self._children()

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._children().keys()

    def values(self) -> Iterable[Any]:
        """The modules."""
        return self._children().values()

    def items(self) -> Iterable[tuple[str, Any]]:
        """(name, module) pairs."""
        return self._children().items()


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
    """Applies its parts one after the other: modules, named "0", "1", ..., and functions, which hold nothing. Parts in a dict have
    its names.

    >>> import glade
    >>> from glade import nn
    >>> model = nn.Sequential(nn.Linear(2, 16), glade.tanh, nn.Linear(16, 1))
    >>> model(glade.zeros(4, 2)).shape
    (4, 1)
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__()
        if len(parts) == 1 and isinstance(parts[0], Mapping):
            named = dict(parts[0])
        else:
            named = {str(i): part for i, part in enumerate(parts)}
        self._names: tuple[str, ...] = ()
        self._parts: tuple[Callable[[Tensor], Tensor], ...] = ()
        for name, part in named.items():
            self._add(name, part)

    def _add(self, name: str, part: Any) -> None:
        if isinstance(part, Module):
            if hasattr(type(self), name):
                raise ValueError(f"Sequential: '{name}' is the name of a method")
            setattr(self, name, part)
        elif callable(part):
            self._names, self._parts = (*self._names, name), (*self._parts, part)
        else:
            raise TypeError(f"Sequential: expected modules and functions, got {type(part).__name__}")

    def append(self, part: Callable[[Tensor], Tensor]) -> "Sequential":
        """Adds a module or a function at the end, named by its number or the next free one, and returns the module. TypeError for
        anything else."""
        number = len(self._parts)
        while str(number) in self._names:
            number += 1
        self._add(str(number), part)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if not isinstance(value, Module):
            return
        if name in self._names:
            at = self._names.index(name)
            self._parts = (*self._parts[:at], value, *self._parts[at + 1 :])
        else:
            self._names, self._parts = (*self._names, name), (*self._parts, value)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        if name in self._names:
            at = self._names.index(name)
            self._names, self._parts = self._names[:at] + self._names[at + 1 :], self._parts[:at] + self._parts[at + 1 :]

    def forward(self, x: Tensor) -> Tensor:
        """The last part's result."""
        for part in self._parts:
            x = part(x)
        return x

    def _parts_to_show(self) -> list[tuple[str, Any]]:
        return [(name, part if isinstance(part, Module) else _Shown(part)) for name, part in zip(self._names, self._parts)]

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):  # whose parts keep their names
            return Sequential(dict(zip(self._names[index], self._parts[index])))
        return self._parts[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parts)

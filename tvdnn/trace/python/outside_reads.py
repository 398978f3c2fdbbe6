"""Values outside the modules that a forward may read: globals, attributes, enclosed variables.

A trace reads such values once. Each later call compares them with those of the trace. A forward
that changes one is refused.
"""

import argparse
import builtins
import dis
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, Final

from torch import Tensor, nn

from ..state.functionalize import version_of
from .held_containers import CONTAINERS, HeldContainers, HeldNames
from .reached_functions import codes_of, forwards_of, is_own

GLOBAL: Final = ("LOAD_GLOBAL", "STORE_GLOBAL")
ENVIRONMENT: Final = frozenset({"environ", "environb", "getenv"})
MOST_ITEMS: Final = 256  # of a container that is compared item by item
MISSING: Final = object()
PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))
DEPTH: Final = 4  # of nested containers that are compared
METHODS: Final = (FunctionType, classmethod, staticmethod, property, type, ModuleType)
NAMESPACES: Final = (SimpleNamespace, argparse.Namespace)


@dataclass(frozen=True, slots=True)
class OutsideNames(HeldNames):
    """Names of globals, or of attributes of the owner."""

    owner: Any = None

    def look(self) -> list[Any]:
        return [*map(self.parent.get, self.names, repeat(MISSING))]

    def put(self, name: str, value: Any) -> None:
        """Give a name the value that it had, or none."""
        held: Any = self.parent
        if self.owner is held and value is MISSING:
            held.pop(name, None)
        elif self.owner is held:
            held[name] = value
        elif value is MISSING:
            delattr(self.owner, name)
        else:
            setattr(self.owner, name, value)


class Outside:
    """The values outside the modules of `net` that its forward may read, found by name.

    `groups` hold globals and attributes, `cells` variables that functions enclose. Lists, sets and
    dicts count by their items, tensors also by torch's count of writes. `asks_grad_mode` tells
    whether forward may ask for torch's grad mode.
    """

    def __init__(self, net: nn.Module) -> None:
        self.functions = forwards_of(net)
        names = {name for each in self.functions for name in _names(each)}
        self.groups = [*_globals(self.functions), *_attributes(net, self.functions, names)]
        self.cells = _cells(self.functions)
        values = {name: cell.cell_contents for name, cell in self.cells.items()}
        enclosed = HeldNames(values, tuple(values), "the variable ")
        self.held = HeldContainers([*self.groups, enclosed], most=MOST_ITEMS, depth=DEPTH)
        found = [*values.values(), *(value for group in self.groups for value in group.look())]
        self._tensors = [each for each in found if isinstance(each, Tensor)]
        self._lists = [
            (c, values[n]) for n, c in self.cells.items() if isinstance(values[n], CONTAINERS)
        ]
        self.asks_grad_mode = "is_grad_enabled" in names
        self._environment: Any = os.environ if names & ENVIRONMENT else {}

    def look(self) -> list[Any]:
        """Lists of the values, for comparison. Raises ValueError for a variable that is gone."""
        return [
            [group.look() for group in self.groups],
            [cell.cell_contents for cell in self.cells.values()],
            self.held.look(),
            [*map(version_of, self._tensors)],
            dict(self._environment),
        ]

    def hold(self) -> bool:
        """Whether each container is the same object as when this was made."""
        return self.held.hold() and all(cell.cell_contents is x for cell, x in self._lists)

    def fingerprint(self, serial: Callable[[object], int]) -> Hashable:
        """A hashable form of the values; `serial` numbers other objects than plain values."""
        frozen = partial(_frozen, serial=serial)
        groups = ((x.title, x.names, frozen(tuple(x.look()))) for x in self.groups)
        cells = ((name, frozen(cell.cell_contents)) for name, cell in self.cells.items())
        links = (
            (x.name, frozen(x.items(), ordered=not isinstance(x.child, set)))
            for x in self.held.containers
        )
        versions = map(version_of, self._tensors)
        environment = sorted(self._environment.items())
        return tuple(groups), tuple(cells), tuple(links), tuple(versions), tuple(environment)


def _frozen(value: Any, serial: Callable[[object], int], ordered: bool = True) -> Hashable:
    """A hashable form: plain values by value, containers by their class alone."""
    if isinstance(value, PLAIN):
        return type(value), value
    if type(value) is tuple:
        items = (_frozen(each, serial) for each in value)
        return tuple(items) if ordered else frozenset(items)
    if isinstance(value, (list, set, dict)) and len(value) <= MOST_ITEMS:
        return type(value)
    return serial(value)


def _names(function: FunctionType) -> Iterator[str]:
    for code in codes_of(function.__code__):
        yield from code.co_names


def _globals(functions: Iterable[FunctionType]) -> Iterator[OutsideNames]:
    """The globals of each file that functions read or set."""
    files: dict[int, tuple[dict[str, Any], dict[str, None]]] = {}
    for function in functions:
        held, names = files.setdefault(id(function.__globals__), (function.__globals__, {}))
        for code in codes_of(function.__code__):
            names.update(dict.fromkeys(_global_names(code)))
    for held, names in files.values():
        found = tuple(name for name in names if not _is_fixed(name, held.get(name, MISSING)))
        if found:
            yield OutsideNames(held, found, f"the global {held.get('__name__')}.", held)


def _is_fixed(name: str, value: Any) -> bool:
    """Whether a global is a file, a function or a class by its own name, or one of Python's."""
    if value is MISSING:
        return hasattr(builtins, name)
    return isinstance(value, ModuleType) or getattr(value, "__name__", None) == name


def _values_of_globals(function: FunctionType) -> list[Any]:
    names = [name for code in codes_of(function.__code__) for name in _global_names(code)]
    return [*map(function.__globals__.get, names)]


def _global_names(code: CodeType) -> Iterator[str]:
    """The names that code reads or sets as globals; `type` is another while a network is traced."""
    for each in dis.get_instructions(code) if code.co_names else ():
        if each.opname in GLOBAL and each.argval != "type":
            yield each.argval


def _attributes(
    net: nn.Module, functions: Sequence[FunctionType], names: set[str]
) -> Iterator[OutsideNames]:
    """Attributes of these names of classes, files and objects that functions and modules name."""
    known: set[int] = set()
    waiting = [kind for module in net.modules() for kind in type(module).__mro__]
    waiting += [each for module in net.modules() for each in vars(module).values()]
    waiting += [value for function in functions for value in _values_of_globals(function)]
    waiting += [cell.cell_contents for cell in _cells(functions).values()]
    while waiting:
        owner = waiting.pop()
        if id(owner) not in known and _has_own_attributes(owner):
            known.add(id(owner))
            held = vars(owner)
            found = tuple(_fields(owner, names))
            kind = owner if isinstance(owner, (type, ModuleType)) else type(owner)
            waiting += [held[name] for name in found if name in held]
            if found:
                yield OutsideNames(held, found, f"the attribute {kind.__name__}.", owner)


def _fields(owner: Any, names: set[str]) -> Iterator[str]:
    """The attributes of these names, without methods, of an owner and of its class."""
    kinds = () if isinstance(owner, (type, ModuleType)) else type(owner).__mro__[:-1]
    of_classes = {name: value for kind in kinds[::-1] for name, value in vars(kind).items()}
    for name, value in (of_classes | dict(vars(owner))).items():
        if name in names and not isinstance(value, METHODS):
            yield name


def _has_own_attributes(owner: Any) -> bool:
    """Whether an object is a class, a file or an instance of the user's own code, or a namespace.

    Modules of networks are compared apart, as functions are.
    """
    if isinstance(owner, (nn.Module, Tensor, FunctionType)) or not hasattr(owner, "__dict__"):
        return False
    if isinstance(owner, ModuleType):
        return is_own(vars(owner))
    kind = owner if isinstance(owner, type) else type(owner)
    return kind in NAMESPACES or is_own({"__name__": kind.__module__})


def _cells(functions: Iterable[FunctionType]) -> dict[str, Any]:
    """The variables that functions enclose, by the function's name and their own."""
    found: dict[str, Any] = {}
    for function in functions:
        pairs = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for variable, cell in pairs:
            name = f"{function.__qualname__}.{variable}"
            while name in found and found[name] is not cell:
                name = f" {name}"
            with suppress(ValueError):  # an empty cell
                cell.cell_contents  # noqa: B018
                found[name] = cell
    return found

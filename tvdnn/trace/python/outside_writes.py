"""Changes outside the modules by a traced forward: refused by name, and taken back."""

import dis
import random
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from ..source_lines import location_text
from .outside_reads import PLAIN, Outside
from .reached_functions import codes_of


class OutsideChanges:
    """A context for the trace of a forward of `net`; `found` are the names of its changes.

    On leaving, all values are as on entering. Of lists and sets another length counts as a change,
    and of all containers other numbers, texts and tuples of them. Other items are caches.
    """

    def __init__(self, net: nn.Module) -> None:
        self.found: list[str] = []
        self._outside = Outside(net)
        self._before = self._outside.look()
        self._items = [container.items() for container in self._outside.held.containers]
        self._generators = dict(_generators(net, self._outside))
        self._states = [*map(_state, self._generators.values())]

    def __enter__(self) -> "OutsideChanges":
        return self

    def __exit__(self, *error: object) -> None:
        names = [
            *self._generators_that_drew(),
            *self._names(),
            *self._variables(),
            *self._contents(),
        ]
        self.found = [f"{name}, which a step would not{self._line(name)}" for name in names]

    def _names(self) -> Iterator[str]:
        """The changed globals and attributes, which get their values back."""
        for group, before in zip(self._outside.groups, self._before[0], strict=True):
            for name, old, new in zip(group.names, before, group.look(), strict=True):
                if not _is_same(old, new):
                    group.put(name, old)
                    yield f"{group.title}{name}"

    def _variables(self) -> Iterator[str]:
        """The changed variables that functions enclose."""
        pairs = zip(self._outside.cells.items(), self._before[1], strict=True)
        for (name, cell), old in pairs:
            if not _is_same(old, cell.cell_contents):
                cell.cell_contents = old
                yield f"the variable {name.strip()}"

    def _contents(self) -> Iterator[str]:
        """The changed lists, sets and dicts."""
        for container, before in zip(self._outside.held.containers, self._items, strict=True):
            now = container.items()
            if len(now) == len(before) and all(map(_is_same, now, before)):
                continue
            container.put_back(before)
            counted = isinstance(container.child, (list, set)) and len(now) != len(before)
            if counted or [*filter(_is_plain, now)] != [*filter(_is_plain, before)]:
                yield container.name

    def _generators_that_drew(self) -> Iterator[str]:
        for (name, generator), state in zip(self._generators.items(), self._states, strict=True):
            if _state(generator) != state:
                yield name

    def _line(self, name: str) -> str:
        variable = name.rpartition(".")[2]
        return location_text(
            next(_lines_of_stores_and_reads(self._outside.functions, variable), None)
        )


def _generators(net: nn.Module, outside: Outside) -> Iterator[tuple[str, Any]]:
    """Generators of random numbers and their names."""
    held = [
        (f"{p.title}{n}", x) for p in outside.groups for n, x in zip(p.names, p.look(), strict=True)
    ]
    held += [(f"the variable {name}", cell.cell_contents) for name, cell in outside.cells.items()]
    for path, module in net.named_modules():
        held += [(f"the attribute {path}.{name}", x) for name, x in vars(module).items()]
    yield from ((name, value) for name, value in held if _state(value) is not None)


def _state(generator: Any) -> str | None:
    """The state of a random generator of Python, torch or numpy; None for another value."""
    if isinstance(generator, torch.Generator):
        return str(generator.get_state().tolist())
    if type(generator) is random.Random:
        return str(generator.getstate())
    if type(generator).__module__.startswith("numpy.random"):
        return str(
            generator.bit_generator.state
            if hasattr(generator, "bit_generator")
            else generator.get_state()
        )
    return None


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are one object, equal plain values, or two files."""
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return all(map(_is_same, one, other))
    plain = isinstance(one, PLAIN) and type(one) is type(other)
    return one is other or isinstance(other, ModuleType) or (plain and bool(one == other))


def _is_plain(value: Any) -> bool:
    return isinstance(value, PLAIN) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def _lines_of_stores_and_reads(
    functions: Iterable[FunctionType], name: str
) -> Iterator[tuple[str, int]]:
    found = [each for f in functions for code in codes_of(f.__code__) for each in _uses(code, name)]
    yield from (line for stores, line in found if stores)
    yield from (line for stores, line in found if not stores)


def _uses(code: CodeType, name: str) -> Iterator[tuple[bool, tuple[str, int]]]:
    """For each instruction that names it: whether it stores, and its line."""
    starts, number = dict(dis.findlinestarts(code)), 0
    for each in dis.get_instructions(code) if name in _all_names(code) else ():
        number = starts.get(each.offset) or number
        if each.argval == name:
            yield each.opname.startswith(("STORE", "DELETE")), (code.co_filename, number)


def _all_names(code: CodeType) -> tuple[str, ...]:
    return (*code.co_names, *code.co_freevars, *code.co_cellvars)

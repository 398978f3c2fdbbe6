"""The functions of a network's own code that its modules name, call or hold."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from torch import nn

OTHERS: Final = frozenset({"torch", "tvdnn", "triton", "numpy", *sys.stdlib_module_names})


def functions_of(net: nn.Module) -> list[FunctionType]:
    """The functions that calls of `net` may reach, without those of torch, numpy and Python.

    They are methods of its modules' classes, functions that its modules hold, and functions that
    another one names, wraps or encloses.
    """
    found: dict[int, FunctionType] = {}
    waiting = [each for module in net.modules() for each in _held(module)]
    while waiting:
        function = _function_in(waiting.pop())
        if function is not None and id(function) not in found and is_own(function.__globals__):
            found[id(function)] = function
            waiting += _named(function)
    return list(found.values())


def forwards_of(net: nn.Module) -> list[FunctionType]:
    """The functions of `functions_of` that a forward may call.

    A function counts if it is called `forward`, if one that counts names it, encloses it or has it
    as a default, if a module holds it, if Python calls it (`__len__`), or if it has no name of its
    own.
    """
    made = {id(vars(kind).get("__init__")) for m in net.modules() for kind in type(m).__mro__}
    held = {
        id(_function_in(each))
        for m in net.modules()
        for v in vars(m).values()
        for each in _items(v)
    }
    left = [each for each in functions_of(net) if id(each) not in made]
    found: list[FunctionType] = []
    names = {"forward"}
    while called := [each for each in left if id(each) in held or _is_called(each, names)]:
        found += called
        left = [each for each in left if each not in called]
        names.update(*(code.co_names for each in called for code in codes_of(each.__code__)))
        held |= {id(_function_in(x)) for each in called for x in _reached(each)}
    return found


def _is_called(function: FunctionType, names: set[str]) -> bool:
    name = function.__name__
    return name in names or name.startswith("__") or "<" in function.__qualname__


def _held(module: nn.Module) -> Iterator[Any]:
    for kind in type(module).__mro__:
        yield from _members_of_own(kind)
    for value in module.__dict__.values():
        yield from _items(value)


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple)) else (value,)


def _members_of_own(kind: Any) -> Iterable[Any]:
    names = {"__name__": kind.__module__} if isinstance(kind, type) else vars(kind)
    return list(vars(kind).values()) if is_own(names) else ()


def _named(function: FunctionType) -> Iterator[Any]:
    """The values that a function reaches, with the members of classes and modules."""
    for value in _reached(function):
        yield value
        if isinstance(value, (type, ModuleType)):
            yield from _members_of_own(value)


def _reached(function: FunctionType) -> Iterator[Any]:
    """The values that a function reaches by global names, closure, defaults and __wrapped__."""
    names = {name for code in codes_of(function.__code__) for name in code.co_names}
    yield from [function.__globals__[name] for name in names & function.__globals__.keys()]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an empty cell
            yield from _items(cell.cell_contents)
    yield from function.__defaults__ or ()
    yield function.__dict__.get("__wrapped__")


def codes_of(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes_of(each)


def _function_in(value: Any) -> FunctionType | None:
    """The function in a method, a property or a partial."""
    if isinstance(value, (MethodType, staticmethod, classmethod)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    elif isinstance(value, partial):
        value = value.func
    return value if isinstance(value, FunctionType) else None


def is_own(names: Any) -> bool:
    """Whether names are the globals of a user's Python file."""
    return str(names.get("__name__")).partition(".")[0] not in OTHERS

"""The operators by kind, found in this package's modules, and the tables derived from them."""

import builtins
import operator
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from .. import functional as ours
from .arithmetic import run_add
from .concat import run_copies, run_zeros
from .decompositions import DECOMPOSITIONS
from .operator import Launch, Operator, Translator

_NAMESPACES = {
    "builtins": builtins,
    "functional": functional,
    "linalg": torch.linalg,
    "operator": operator,
}


# The modules of this folder that read the tables below.
_READERS = ("bind_pass", "expand", "facts", "in_place", "split_rows", "tf32", "translate")


def _operators() -> Iterator[Operator]:
    """The records of all modules of this folder, in the order of the modules' names."""
    here = Path(__file__)
    for path in sorted(here.parent.glob("*.py")):
        if path.stem not in ("__init__", here.stem, *_READERS):
            for value in vars(import_module(f"{__package__}.{path.stem}")).values():
                found = value if isinstance(value, tuple) else (value,)
                yield from (each for each in found if isinstance(each, Operator))


OPERATORS: Mapping[str, Operator] = {each.kind: each for each in _operators()}


def _torch_functions(name: str) -> Iterator[Any]:
    """The functions of a name, as records give it, and their forms in place."""
    place, _, short = name.rpartition(".")
    in_place = f"i{short}" if place == "operator" else f"{short}_"
    for module in [_NAMESPACES[place]] if place else [torch, functional, ours]:
        found = (getattr(module, each, None) for each in (short, in_place))
        yield from (each for each in found if each is not None)


_TRANSLATORS: Mapping[str, Translator] = {
    name: translator for each in OPERATORS.values() for name, translator in each.functions.items()
}
FUNCTIONS: Mapping[Any, Translator] = {
    function: translator
    for name, translator in _TRANSLATORS.items()
    for function in _torch_functions(name)
}
METHODS: Mapping[str, Translator] = {
    name: translator for name, translator in _TRANSLATORS.items() if hasattr(torch.Tensor, name)
}


def _names() -> set[str]:
    """The names of torch's functions and methods that are translated or decomposed."""
    functions = (*FUNCTIONS, *DECOMPOSITIONS)
    in_torch = {each.__name__ for each in functions if each.__module__ != ours.__name__}
    others = {name for name in in_torch if name.endswith("_") or hasattr(operator, name)}
    return METHODS.keys() | (in_torch - others)


LAYERS = tuple(name for each in OPERATORS.values() for name in each.modules)
INSTEAD_OF = {name: hint for each in OPERATORS.values() for name, hint in each.instead_of.items()}
SUPPORTED = (
    f"the layers {', '.join(LAYERS)} and Sequential; the functions and methods"
    f" {', '.join(sorted(_names()))}; over any dimension but the batch; Python's operators, slices"
    " and indices; weights and biases that are computed of parameters, buffers and constants"
)
_EVERY_OPS: Mapping[str, Callable[[Launch], None]] = {
    "add_grad": run_add,
    "copy_grad": run_copies,
    "zero_grad": run_zeros,
}


def role(kind: str, name: str) -> Callable[[Launch], None]:
    """The function that launches the pass `name` of an op of `kind`."""
    return {**_EVERY_OPS, **OPERATORS[kind].launches}[name]


def multiplies(kind: str, name: str) -> bool:
    """Whether the pass multiplies its reads on tensor cores."""
    return name in OPERATORS[kind].products


def copies_values(kind: str, name: str) -> bool:
    """Whether the pass only copies: each write holds values of one read."""
    return name == "copy_grad" or name in OPERATORS[kind].copies_values

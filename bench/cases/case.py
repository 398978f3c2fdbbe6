"""One case a kernel: how its launches are made, and the sizes and settings to make them with.

Tests, offline compilation and measurements all read the cases.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from pathlib import Path
from types import FunctionType
from typing import Any, Final

from bench.cases.launch import Launch, Settings
from bench.cases.operands import BF16, F32, Shape

TYPES: Final = (BF16, F32)  # of maps
KINDS: Final = (  # types of maps, and the precision of the products that read them
    {"dtype": BF16, "precision": "ieee"},
    {"dtype": F32, "precision": "tf32"},
)
ROOT: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class At:
    """A size and settings of a launch that is compiled."""

    size: Shape
    settings: Settings = field(default_factory=dict)
    wgmma: bool = False  # on Hopper the launch must use warpgroup products
    tuned: bool = False  # compiled with the first and last candidates of its tiles too


@dataclass(frozen=True, slots=True)
class Measured:
    """A row of the kernels' tables: a launch, its peer, and how often a network has it."""

    kernel: str
    size: Shape
    settings: Settings = field(default_factory=dict)
    small: Shape = (3, 9, 9, 16)  # the size at which tests compare the row's two sides
    small_settings: Settings = field(default_factory=dict)  # there, beside the others
    make: Callable[..., Launch] | None = None  # by default the case's own
    set: str = "elementwise"  # the table that the row stands in
    title: str = ""  # of the shape; by default the size
    peer: str = "torch"
    count: int = 1
    typed: bool = True  # measured in each type of maps; else without a type

    @property
    def shape(self) -> str:
        return self.title or "x".join(map(str, self.size))


@dataclass(frozen=True, slots=True)
class KernelCase:
    """A launcher, and the launches of it that are checked, compiled and measured."""

    launcher: Callable[..., None]
    make: Callable[..., Launch]  # takes operands, a size and settings
    checked: Mapping[str, Settings] = field(default_factory=lambda: {"": {}})  # settings by name
    compiled: Sequence[At] = ()
    measured: Sequence[Measured] = ()
    odd: bool = True  # tests run it at an odd size too
    tolerance: float = 0.0  # relative RMS error that is allowed where the output's type has less

    @property
    def name(self) -> str:
        assert isinstance(self.launcher, FunctionType)
        return self.launcher.__name__


def over(*choices: Iterable[Settings], **lists: Iterable[Any]) -> Iterator[Settings]:
    """Yield all combinations of the choices of settings and of the lists' values."""
    named = [[{name: value} for value in values] for name, values in lists.items()]
    for chosen in product(*choices, *named):
        yield {name: value for each in chosen for name, value in each.items()}


def at(sizes: Iterable[Shape], settings: Iterable[Settings] = ({},)) -> tuple[At, ...]:
    """Every size with each of the settings."""
    settings = tuple(settings)
    return tuple(At(size, each) for size in sizes for each in settings)


def checked(**lists: Iterable[Any]) -> dict[str, Settings]:
    """All combinations of the values, each named by them."""
    return {", ".join(map(str, each.values())): each for each in over(**lists)}


BY_TYPE: Final = checked(dtype=TYPES)


def kernel_cases() -> Iterator[KernelCase]:
    """The cases of every module of this folder's packages: no list names them."""
    for path in sorted(ROOT.glob("*/**/*.py")):
        name = ".".join(("bench", "cases", *path.relative_to(ROOT).with_suffix("").parts))
        yield from getattr(import_module(name), "CASES", ())

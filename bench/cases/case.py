"""One case a kernel: its launches on operands of any size, and which of them are asked for.

Tests, offline compilation and measurements all read the cases. A case makes the operands of a
launch on any device: the CPU for Triton's interpreter, the meta device to compile, a GPU to
measure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from math import nan, prod
from pathlib import Path
from sys import modules
from types import FunctionType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from tvdnn.kernels.language.cost import Cost, cost_of, moved

BF16, F32, U8 = torch.bfloat16, torch.float32, torch.uint8
KINDS: Final = (  # types of maps, and the precision of the products that read them
    {"dtype": BF16, "precision": "ieee"},
    {"dtype": F32, "precision": "tf32"},
)
ROOT: Final = Path(__file__).parent
Shape = tuple[int, ...]
Settings = Mapping[str, Any]


def whole(output: Tensor) -> Tensor:
    return output


@dataclass(frozen=True, slots=True)
class Written:
    """A tensor that a launch writes, the flat buffer around it, and what it holds before.

    A launch writes `part` of it. `compared` is what of the part the reference defines.
    """

    tensor: Tensor
    buffer: Tensor
    start: Tensor | None
    part: Callable[[Tensor], Tensor]
    compared: Callable[[Tensor], Tensor]


class Operands:
    """Fresh operands on one device. It keeps track of those that a launch writes.

    An output lies in a buffer with `margin` elements on both sides.
    """

    def __init__(
        self, device: torch.device, generator: torch.Generator | None = None, margin: int = 0
    ) -> None:
        self.device, self.generator, self.margin = device, generator, margin
        self.written: list[Written] = []

    @property
    def holds_values(self) -> bool:
        return self.device.type != "meta"

    def randn(self, *shape: int, dtype: torch.dtype = F32, beside: Shape = ()) -> Tensor:
        """Normal values. `beside`: channels of a wider map before and after these."""
        before, after = beside or (0, 0)
        wide = (*shape[:-1], shape[-1] + before + after)
        made = torch.empty(wide, device=self.device)
        if self.holds_values:
            made.normal_(generator=self.generator)  # in bfloat16 torch 2.11 draws zeros
        made = made.to(dtype)
        return made[..., before : before + shape[-1]] if beside else made

    def integers(self, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        made = torch.empty(shape, dtype=dtype, device=self.device)
        return made.random_(high, generator=self.generator) if self.holds_values else made

    def full(self, value: float, *shape: int, dtype: torch.dtype = F32) -> Tensor:
        return torch.full(shape, value, dtype=dtype, device=self.device)

    def out(
        self,
        *shape: int,
        dtype: torch.dtype = F32,
        beside: Shape = (),
        written: Callable[[Tensor], Tensor] = whole,
        compared: Callable[[Tensor], Tensor] = whole,
    ) -> Tensor:
        """An output that holds poison, or a range of channels of a wider one."""
        before, after = beside or (0, 0)
        wide = (*shape[:-1], shape[-1] + before + after)
        buffer = torch.empty(prod(wide) + 2 * self.margin, dtype=dtype, device=self.device)
        tensor = buffer[self.margin : self.margin + prod(wide)].view(wide)
        tensor = tensor[..., before : before + shape[-1]] if beside else tensor
        self.written.append(Written(tensor, buffer, None, written, compared))
        if self.holds_values:
            poison(buffer)
        return tensor

    def updated(self, start: Tensor, compared: Callable[[Tensor], Tensor] = whole) -> Tensor:
        """A copy of `start` that a launch reads and writes."""
        buffer = torch.empty(start.numel() + 2 * self.margin, dtype=start.dtype, device=self.device)
        tensor = buffer[self.margin : self.margin + start.numel()].view(start.shape)
        self.written.append(Written(tensor, buffer, start, whole, compared))
        if self.holds_values:
            poison(buffer)
        tensor.copy_(start)
        return tensor

    def restore(self) -> None:
        """Give the tensors that launches update their first values again."""
        for each in self.written:
            if each.start is not None:
                each.tensor.copy_(each.start)

    def reset(self, value: float | None = None) -> None:
        """As before the first launch, with `value` in the outputs instead of poison."""
        for each in self.written:
            if value is None:
                poison(each.buffer)
            else:
                each.buffer.fill_(value)
        self.restore()


def poison(tensor: Tensor) -> Tensor:
    """Fill a tensor with NaN, or with the largest integer."""
    wide = tensor.dtype.is_floating_point
    return tensor.fill_(nan if wide else torch.iinfo(tensor.dtype).max)


class Call(NamedTuple):
    """A call of a launcher."""

    launcher: Callable[..., None]
    operands: tuple[Any, ...]
    settings: Settings

    def run(self) -> None:
        self.launcher(*self.operands, **self.settings)

    def run_reference(self) -> None:
        module = modules[self.launcher.__module__]
        reference = getattr(module, self.launcher.__name__ + "_reference")
        reference(*self.operands, **self.settings)

    @property
    def cost(self) -> Cost:
        return cost_of(self.launcher, *self.operands, **self.settings)


@dataclass(frozen=True, slots=True)
class Peer:
    """torch's counterpart of a launch; both results have one layout.

    `exact` computes in float64 the part of a result that `part` cuts out. Random numbers are not
    the `same_numbers` for both.
    """

    result: Callable[[], Tensor]  # of our launch
    run: Callable[[], Tensor]
    exact: Callable[[], Tensor]
    part: Callable[[Tensor], Tensor] = lambda result: result
    same_numbers: bool = True


@dataclass(frozen=True, slots=True)
class Launch:
    """Calls of launchers that make one result, on operands of their own.

    `before` are calls that make operands, and are no part of the work. `scratch` are tensors that
    one call leaves to another, which other kernels would do without: they cost nothing.
    """

    calls: tuple[Call, ...]
    peer: Peer | None = None
    before: tuple[Call, ...] = ()
    scratch: tuple[Tensor, ...] = ()

    @property
    def costs(self) -> list[Cost]:
        """Of each call, without the bytes of scratch."""
        return [self._cost(call) for call in self.calls]

    def _cost(self, call: Call) -> Cost:
        free = [each for each in self.scratch if any(each is given for given in call.operands)]
        return Cost(call.cost.flops, call.cost.nbytes - moved(free))

    def run(self) -> None:
        for call in self.calls:
            call.run()

    def prepare(self) -> None:
        for call in self.before:
            call.run()


def launching(
    launcher: Callable[..., None], *operands: Any, peer: Peer | None = None, **settings: Any
) -> Launch:
    """A launch of one call."""
    return Launch((Call(launcher, operands, settings),), peer)


@dataclass(frozen=True, slots=True)
class At:
    """A size, and settings of the maker, to compile for."""

    size: Shape
    settings: Settings = field(default_factory=dict)
    wgmma: bool = False  # on Hopper the launch must use warpgroup products
    tuned: bool = False  # by the first and last candidates of its tiles too


@dataclass(frozen=True, slots=True)
class Measured:
    """A row of the kernels' tables: a launch, its peer, and how often a network has it."""

    kernel: str
    size: Shape
    settings: Settings = field(default_factory=dict)
    small: Shape = (3, 9, 9, 16)  # the size at which tests compare the row's two sides
    small_settings: Settings = field(default_factory=dict)
    make: Callable[..., Launch] | None = None  # by default the case's own
    set: str = "elementwise"
    title: str = ""  # of the shape; by default the size
    peer: str = "torch"
    count: int = 1
    typed: bool = True  # measured in each type of maps

    @property
    def shape(self) -> str:
        return self.title or "x".join(map(str, self.size))


@dataclass(frozen=True, slots=True)
class KernelCase:
    """A launcher and all that is asked of it. `make` takes operands, a size and settings.

    `checked` names the settings with which tests run it, at sizes that the tests choose: small
    ones, and where it takes them `odd` ones. A GPU runs them large. `tolerance` is the relative
    RMS error that its reference allows, beside that of its output's type.
    """

    launcher: Callable[..., None]
    make: Callable[..., Launch]
    checked: Mapping[str, Settings] = field(default_factory=lambda: {"": {}})
    compiled: Sequence[At] = ()
    measured: Sequence[Measured] = ()
    odd: bool = True
    tolerance: float = 0.0

    @property
    def name(self) -> str:
        assert isinstance(self.launcher, FunctionType)
        return self.launcher.__name__


def over(*choices: Iterable[Settings], **lists: Iterable[Any]) -> Iterator[Settings]:
    """All combinations of settings, and of the values of single ones."""
    named = [[{name: value} for value in values] for name, values in lists.items()]
    for chosen in product(*choices, *named):
        yield {name: value for each in chosen for name, value in each.items()}


def at(sizes: Iterable[Shape], settings: Iterable[Settings] = ({},)) -> tuple[At, ...]:
    """Every size with all of the settings."""
    settings = tuple(settings)
    return tuple(At(size, each) for size in sizes for each in settings)


def checked(**lists: Iterable[Any]) -> dict[str, Settings]:
    """All combinations of the values, each named by them."""
    return {", ".join(map(str, each.values())): each for each in over(**lists)}


def per_sample(
    result: Callable[[], Tensor], compute: Callable[..., Tensor], *inputs: Tensor
) -> Peer:
    """torch's operation, which is done in float64 on the first samples."""
    few = slice(EXACT_SAMPLES)
    return Peer(
        result,
        lambda: compute(*inputs),
        lambda: compute(*(tensor[few].double() for tensor in inputs)),
        first_samples,
    )


EXACT_SAMPLES: Final = 2


def first_samples(result: Tensor) -> Tensor:
    return result[:EXACT_SAMPLES]


def nchw(nhwc: Tensor) -> Tensor:
    return nhwc.permute(0, 3, 1, 2)


def kernel_cases() -> Iterator[KernelCase]:
    """The cases of every module of this folder's packages: no list names them."""
    for path in sorted(ROOT.glob("*/**/*.py")):
        name = ".".join(("bench", "cases", *path.relative_to(ROOT).with_suffix("").parts))
        yield from getattr(import_module(name), "CASES", ())

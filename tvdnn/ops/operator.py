"""Operator: the one record of a kind of op, and the arguments that a launch of its passes gets."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import torch

from ..graph import Network, Op
from .builder import Builder
from .concat_views import WORD, Channels, StridedSupport
from .traced_op import TracedOp

TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "uint8": torch.uint8,
}
NOT_STRIDED = StridedSupport()
STRIDED = StridedSupport(frozenset({"input", "output", "gradient"}))
STRIDED_BY_WORDS = StridedSupport(STRIDED.uses, WORD)
# From torch's shape of the result and the call's arguments to an op; None of a call that yields
# several maps, which those make that take one of them.
Translator = Callable[..., TracedOp | None]


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """The device's record of labels that are no classes. `kernels.labels` writes it."""

    # int64 [1]: the number of the present step, above 0, written before each
    step: torch.Tensor
    # int64 [2]: the first such sample with its label, and the step; zeros where there is none
    record: torch.Tensor


class Group(Protocol):
    """The processes that train together."""

    @property
    def rank(self) -> int:
        """The number of this process in the group."""
        ...

    @property
    def sums_in_graphs(self) -> bool:
        """Whether a CUDA graph may hold a sum."""
        ...

    def sum(self, values: torch.Tensor) -> None:
        """Sum a tensor over the processes, in its place and in the stream's order."""
        ...

    def scatter(self, values: torch.Tensor) -> None:
        """Sum as `sum` does; each process has the sum in its own of so many equal ranges alone."""
        ...

    def gather(self, values: torch.Tensor) -> None:
        """Give all processes what each has in its own of so many equal ranges of a tensor."""
        ...


@dataclass(frozen=True, slots=True)
class Control:
    """Device scalars written before each step: optimizer settings, the loss's scale, the seed.

    The last of the 8 `optimizer` settings is a flag, which a label that is no class sets: while it
    is not 0 no pass may change what outlives a step.
    """

    optimizer: torch.Tensor
    scale: torch.Tensor
    seed: torch.Tensor
    faults: FaultRecord | None = None
    # Of processes that train together: float32 [5], what this one has, and [6], the sums over all
    # with their flags behind. The first words are samples.
    own: torch.Tensor | None = None
    status: torch.Tensor | None = None
    group: Group | None = None

    @property
    def share(self) -> dict[str, torch.Tensor]:
        """This process's samples and those of all, each float32 [1], as `pack` takes them."""
        assert self.own is not None
        assert self.status is not None
        return {"weight": self.own[:1], "total": self.status[:1]}

    @property
    def rank(self) -> int:
        """The number of this process among those that train together."""
        return 0 if self.group is None else self.group.rank

    @property
    def flag(self) -> torch.Tensor:
        """Float32 [1]: not 0 where passes must leave parameters, state and statistics alone."""
        return self.optimizer[7:8]


class _NoGroup:
    """In the place of a group, where a step is rehearsed on bytes without meaning."""

    sums_in_graphs = True

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def sum(self, values: torch.Tensor) -> None:
        """Leave the values as they are."""

    def scatter(self, values: torch.Tensor) -> None:
        """Leave the values as they are."""

    def gather(self, values: torch.Tensor) -> None:
        """Leave the values as they are."""


def without_group(control: Control) -> Control:
    """The control of a rehearsal, in which no other process takes part."""
    group = control.group
    return control if group is None else replace(control, group=_NoGroup(group.rank))


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: views of the buffers and tensors that a pass uses over samples [start, stop)."""

    # The launchers, or their references under the same names.
    kernels: Any
    # In the order of the pass's uses. A map that is read in another form than raw is a code, and
    # codes that are left beside writes come behind all writes, in the order of these.
    reads: tuple[torch.Tensor, ...]
    writes: tuple[torch.Tensor, ...]
    # In the order of the pass's names; None where the op has no such parameter.
    params: tuple[torch.Tensor | None, ...]
    # By name, the parameter and then its optimizer state.
    updates: tuple[tuple[torch.Tensor | None, ...], ...]
    attrs: Mapping[str, Any]
    # That of products.
    precision: str
    # The channels of each write that products read.
    rounded: tuple[Channels | None, ...]
    # `stored` in the op's forward pass.
    output_stored: str
    start: int
    stop: int
    control: Control
    # The rows above and below its own that the read with a halo has.
    beside: tuple[int, int] = (0, 0)
    # Of processes that train together, the samples of those before this one.
    samples_before: int = 0

    @property
    def first_sample(self) -> int:
        """The first sample of the launch among those of all processes."""
        return self.samples_before + self.start

    @property
    def stored(self) -> str:
        """The precision of the products that read the result."""
        return self.precision if any(self.rounded) else "ieee"

    @property
    def rounded_from(self) -> int | None:
        """The first channel of the first write that products read; None where that is the first."""
        first = self.rounded[0] if self.rounded else None
        return first[0] or None if first else None

    @property
    def weight(self) -> torch.Tensor:
        """The first parameter of an op that has one."""
        weight = self.params[0]
        assert weight is not None
        return weight

    def reads_alike(self) -> tuple[torch.Tensor, ...]:
        """The reads in the shape of the first write. Views may have other shapes."""
        return tuple(read.view_as(self.writes[0]) for read in self.reads)

    def by_pixel(self, maps: torch.Tensor) -> torch.Tensor:
        """Maps as `by_pixel` has them, of as many channels as the pass says."""
        return by_pixel(maps, self.attrs["channels"])

    def settings(self, *names: str) -> dict[str, Any]:
        """The op's static settings of these names, as keyword arguments of a launcher."""
        return {name: self.attrs[name] for name in names}


def launches(kernel: str, *settings: str, stores: bool = True) -> Callable[[Launch], None]:
    """A launch of a kernel on the reads and writes, with settings of the op.

    A kernel that `stores` rounded values is also told their precision.
    """

    def run(a: Launch) -> None:
        given = a.settings(*settings) | ({"precision": a.stored} if stores else {})
        getattr(a.kernels, kernel)(*a.reads, *a.writes, **given)

    return run


def elementwise(kernel: str, *settings: str) -> Callable[[Launch], None]:
    """The same of a kernel whose operands all have one shape."""

    def run(a: Launch) -> None:
        writes = (write.view_as(a.writes[0]) for write in a.writes)
        given = a.settings(*settings) | {"precision": a.stored}
        getattr(a.kernels, kernel)(*a.reads_alike(), *writes, **given)

    return run


def as_maps(values: torch.Tensor) -> torch.Tensor:
    """Values [N, C] or [N, pixels, C] as maps [N, H, W, C] of one pixel or of one row."""
    if values.dim() == 4:
        return values
    samples, *pixels, channels = values.shape
    (count,) = pixels or (1,)
    pitch = values.stride(-2)
    strides = (values.stride(0), count * pitch, pitch, 1)
    return values.as_strided((samples, 1, count, channels), strides)


def by_pixel(maps: torch.Tensor, channels: int) -> torch.Tensor:
    """Maps as [N, pixels, channels], which may be ranges of wider ones; a view may rename them."""
    return maps.view(len(maps), -1, channels)


@dataclass(frozen=True, slots=True)
class Operator:
    """One kind of op: its calls in torch, its passes, its launches and its traits.

    The tables of functions, methods and layers, and all that is asked of a kind, are derived from
    these records (registry.py).
    """

    kind: str
    # Add the passes of an op to a builder.
    forward: Callable[[Builder, Op], None]
    backward: Callable[[Builder, Op], None]
    # By the role of a pass, what a launch of it does.
    launches: Mapping[str, Callable[[Launch], None]]
    # Of the op's own values, "input" and "output", those that its backward passes read.
    saves: Set[str] = frozenset()
    # Whether its output may take its input's bytes.
    in_place: bool = False
    # Whether its backward passes take the gradient of its output as a sum of two terms.
    adds_grads: bool = False
    # The roles whose passes multiply the values that they read on tensor cores.
    products: Set[str] = frozenset()
    # The kind of the same function whose gradient reads the input. It takes the place of an op with
    # an output that is rounded to TF32. "" where no gradient is lost by that.
    if_rounded: str = ""
    # The roles whose passes write no other values than they read.
    copies_values: Set[str] = frozenset()
    # Whether a NaN that its passes copy may get other bits.
    changes_nan: bool = False
    # The roles whose passes first write values that are not negative.
    not_negative: Set[str] = frozenset()
    # What its passes take as ranges of the channels of wider maps.
    strided: StridedSupport = NOT_STRIDED
    # The most row tiles that its maps may be cut into; None where it takes whole maps only.
    row_tiles: Callable[[Network, Op], int] | None = None
    # The vDNN policies that offload its input: "all", or "conv" and "all"; "" for none.
    vdnn: Literal["", "all", "conv"] = ""

    # By name, the translators of functions and methods. A plain name is that of a function of
    # torch, torch.nn.functional and tvdnn.functional and of a tensor's method, in place or not; one
    # with a dot is that of the function in one module.
    functions: Mapping[str, Translator] = field(default_factory=dict)
    # The names of the layers of torch.nn and tvdnn.nn that call these functions.
    modules: tuple[str, ...] = ()
    # What could stand in the place of layers and functions that tvdnn has not, by their names.
    instead_of: Mapping[str, str] = field(default_factory=dict)
    # Whether its result has the order of dimensions of its inputs, if they share one.
    keeps_axes: bool = False
    # Whether it takes maps of three dimensions, [N, C, L].
    takes_rows: bool = False
    # Whether it takes views of parameters, or buffers in the place of parameters.
    takes_views: bool = False
    takes_buffers: bool = False
    # Whether it draws random numbers of its own.
    draws: bool = False
    # Whether it may be left out where nothing reads its result: readers may have read its input.
    skippable: bool = False

    def untraced(self, kind: str, **changes: Any) -> "Operator":
        """A record like this one, of an op that no call of torch's becomes: of a fused one."""
        return replace(self, kind=kind, functions={}, modules=(), instead_of={}, **changes)


def elementwise_translator(kind: str) -> Translator:
    """The translator of a function of a map alone, with torch's flag `inplace` or without."""

    def translate(out: object, x: Any, inplace: bool = False) -> TracedOp:
        return TracedOp(kind, (x,))

    translate.__name__ = kind
    return translate

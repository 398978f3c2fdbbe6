"""The form of an op definition, and the arguments that a launch of one of its passes gets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..graph import Op
from .builder import Builder
from .concat_views import WORD, Channels, Ranges

TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "uint8": torch.uint8,
}
UNPITCHED = Ranges()
PITCHED = Ranges(frozenset({"input", "output", "gradient"}))
PITCHED_BY_WORDS = Ranges(PITCHED.uses, WORD)


@dataclass(frozen=True, slots=True)
class Faults:
    """What labels that are no classes leave on the device: `kernels.labels` writes it."""

    # int64 [1]: the number of the present step, above 0, written before each
    step: torch.Tensor
    # int64 [2]: the first such sample with its label, and the step; zeros where there is none
    record: torch.Tensor


@dataclass(frozen=True, slots=True)
class Control:
    """Device scalars written before each step: optimizer settings, the loss's scale, the seed.

    The last of the 8 `optimizer` settings is a flag, which a label that is no class sets: while it
    is not 0 no pass may change what outlives a step.
    """

    optimizer: torch.Tensor
    scale: torch.Tensor
    seed: torch.Tensor
    faults: Faults | None = None

    @property
    def flag(self) -> torch.Tensor:
        """Float32 [1]: not 0 where passes must leave parameters, state and statistics alone."""
        return self.optimizer[7:8]


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: views of the buffers and tensors that a pass uses over samples [start, stop).

    `reads` and `writes` are in the order of the pass's uses, `params` and `updates` in that of its
    names (None where the op has no such parameter; for an update, by name the parameter and then
    its optimizer state). `kernels` has the launchers or their references under the same names.
    `precision` is that of products, `rounded` the channels of each write that are such's operands;
    `output_stored` is what `stored` was in the op's forward pass. `beside` are the rows above and
    below its own that the read with a halo has.
    """

    kernels: Any
    reads: tuple[torch.Tensor, ...]
    writes: tuple[torch.Tensor, ...]
    params: tuple[torch.Tensor | None, ...]
    updates: tuple[tuple[torch.Tensor | None, ...], ...]
    attrs: Mapping[str, Any]
    precision: str
    rounded: tuple[Channels | None, ...]
    output_stored: str
    start: int
    stop: int
    control: Control
    beside: tuple[int, int] = (0, 0)

    @property
    def stored(self) -> str:
        """The precision of the products that read what is written."""
        return self.precision if any(self.rounded) else "ieee"

    @property
    def rounded_from(self) -> int | None:
        """The first channel of the first write that products read; None where that is the first."""
        first = self.rounded[0] if self.rounded else None
        return first[0] or None if first else None

    def reads_alike(self) -> tuple[torch.Tensor, ...]:
        """The reads in the shape of what is written: views may have renamed them."""
        return tuple(read.view_as(self.writes[0]) for read in self.reads)

    def settings(self, *names: str) -> dict[str, Any]:
        """The op's static settings of these names, as keyword arguments of a launcher."""
        return {name: self.attrs[name] for name in names}


def as_maps(values: torch.Tensor) -> torch.Tensor:
    """Values [N, C] or [N, pixels, C] as maps [N, H, W, C] of one pixel or of one row."""
    if values.dim() == 4:
        return values
    samples, *pixels, channels = values.shape
    (count,) = pixels or (1,)
    pitch = values.stride(-2)
    strides = (values.stride(0), count * pitch, pitch, 1)
    return values.as_strided((samples, 1, count, channels), strides)


@dataclass(frozen=True, slots=True)
class OpDef:
    """How one kind of op is declared and run.

    `forward` and `backward` add the op's passes to a builder; `saves` names what its backward reads
    of its own ("input", "output"); `elementwise` allows its output to take its input's bytes;
    `adds_grads` tells that its backward takes the gradient of its output as a sum of two terms.
    `roles` maps the role of each pass to what a launch of it does. `products` are the roles whose
    passes multiply the values that they read on tensor cores, `moves` those whose passes write no
    other values than they read. `pitched` tells what these take as ranges of the channels of wider
    maps.
    """

    kind: str
    forward: Callable[[Builder, Op], None]
    backward: Callable[[Builder, Op], None]
    roles: Mapping[str, Callable[[Launch], None]]
    saves: frozenset[str] = field(default_factory=frozenset)
    elementwise: bool = False
    adds_grads: bool = False
    products: frozenset[str] = frozenset()
    moves: frozenset[str] = frozenset()
    pitched: Ranges = UNPITCHED

"""Passes: the kernel-level stages of a step over the buffers they use, and the Graph of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .buffer import Buffer
from .network import Network, Op


class Direction(Enum):
    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


class Need(Enum):
    """What a pass takes from a buffer that it reads: it decides in which forms that may rest."""

    VALUES = "values"
    SIGN = "sign"
    ARGMAX = "argmax"


@dataclass(frozen=True, slots=True)
class Use:
    """A pass's use of one buffer.

    A launch over domain rows [a, b) touches buffer rows [a // per, ceil(b / per)), or every row if
    `whole`. `channels` limits the use to a range of the last axis. `halo` are the rows of pixels
    above and below its own that it reads of a map in bands; they are in the sections before and
    behind, which further uses name by `beside`, -1 and 1 (at an end of the map, its last section).
    `shape` is that of a sample as the op sees it, where a view has given it another than the buffer
    has.
    """

    buffer: str
    whole: bool = False
    per: int = 1
    need: Need = Need.VALUES
    channels: tuple[int, int] | None = None
    halo: tuple[int, int] = (0, 0)
    beside: int = 0
    shape: tuple[int, ...] = ()

    def rows(self, start: int, stop: int, buffer: Buffer) -> tuple[int, int]:
        """The buffer rows that a launch over domain rows [start, stop) touches."""
        if self.whole:
            return 0, buffer.rows
        first, last = start // self.per, -(-stop // self.per)
        if self.beside < 0:
            return max(0, first - buffer.section), first or min(buffer.section, buffer.rows)
        if self.beside > 0:
            end = min(buffer.rows, last + buffer.section)
            return last if last < end else buffer.bounds(buffer.num_sections - 1)[0], end
        return first, last

    def width(self, buffer: Buffer) -> int:
        """Channels of the buffer that the use may touch."""
        start, stop = self.channels or (0, buffer.shape[-1])
        return stop - start

    def nbytes(self, buffer: Buffer) -> int:
        """Bytes of the buffer that the use may touch."""
        return buffer.nbytes // buffer.shape[-1] * self.width(buffer)


def meet(first: tuple[int, int], second: tuple[int, int]) -> bool:
    """Whether two ranges of channels have one in common."""
    return first[0] < second[1] and second[0] < first[1]


@dataclass(frozen=True, slots=True)
class Pass:
    """One kernel-level stage of an op's forward, backward or update.

    Its domain is the batch, rows [0, domain). A launch covers [a, b) with a and b multiples of
    `unit` (or b the domain's end); `unit` holds whole sections of every buffer used. A
    `reduction`'s launches go in index order and its result is complete only after the last.
    `params` are read and `updates` written in place, both by name. `flops` and `nbytes`
    (device-memory traffic) are those of the whole domain. `attrs` are static settings beside the
    op's. `effects` marks state outside the buffers that recompute must not repeat. `rounded` are by
    write the channels that are rounded to TF32, None for none; () where no products read TF32.
    """

    name: str
    op: str
    role: str
    direction: Direction
    domain: int
    unit: int
    reads: tuple[Use, ...]
    writes: tuple[Use, ...]
    params: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    reduction: bool = False
    flops: float = 0.0
    nbytes: float = 0.0
    attrs: Mapping[str, Any] = field(default_factory=dict)
    effects: bool = False
    rounded: tuple[tuple[int, int] | None, ...] = ()

    @property
    def splittable(self) -> bool:
        return self.unit < self.domain

    @property
    def windowed(self) -> bool:
        """Whether a launch reads rows beside its own; its last write is then scratch for them."""
        return any(use.beside for use in self.reads)


def must_part(first: Pass, second: Pass) -> bool:
    """Whether one writes what the other reads beside its own bands.

    Such passes cannot go block by block together: at the end of a block the rows below it are not
    there yet, or those above the next are no more.
    """
    return _writes_beside(first, second) or _writes_beside(second, first)


def _writes_beside(writer: Pass, reader: Pass) -> bool:
    beside = {use.buffer for use in reader.reads if use.beside}
    return bool(beside) and any(use.buffer in beside for use in writer.writes)


@dataclass(frozen=True, slots=True)
class Graph:
    """A training (or evaluation) step of a network: passes in program order over buffers.

    `inputs` maps each buffer that the caller fills before the step to the network value or target
    it holds, `outputs` are the buffers handed out after it: those of the network's outputs in their
    order (`output_maps`), and where asked for the gradients of inputs (`input_grads`) and of
    parameters (`param_grads`, the whole one first). `phase_split` is the index of
    the first backward pass where the step is run in two phases (autograd mode), else the number of
    passes. `fixed` are the
    bytes by purpose of what lies outside the arena: parameters, gradients, optimizer state, control
    block, staged inputs. `rounded_inputs` and `rounded_ops` are the inputs, and the ops whose
    outputs, are rounded to TF32. `bands` is the number of bands that maps of a sample are cut
    into: each goes through the passes as a sample. `lean` gives the same step, to the bit, without
    the maps `spared`, that are kept only to save time, if there are such.
    """

    traced: Network  # before any rewrite, and without losses
    network: Network
    ops: Mapping[str, Op]
    buffers: Mapping[str, Buffer]
    passes: tuple[Pass, ...]
    inputs: Mapping[str, str]
    outputs: tuple[str, ...]
    output_maps: tuple[str, ...]
    input_grads: Mapping[str, str]
    param_grads: Mapping[str, tuple[str, ...]]
    phase_split: int
    fixed: Mapping[str, int]
    dtype: str
    chunk_size: int
    rounded_inputs: frozenset[str] = frozenset()
    rounded_ops: frozenset[str] = frozenset()
    bands: int = 1
    spared: frozenset[str] = frozenset()
    lean: "Callable[[], Graph] | None" = field(default=None, compare=False, repr=False)

    @property
    def batch(self) -> int:
        """Rows of every map: the bands of all samples."""
        return self.network.batch * self.bands

    @property
    def fixed_nbytes(self) -> int:
        return sum(self.fixed.values())

    @property
    def baseline_nbytes(self) -> int:
        """Bytes of network-wide allocation, vDNN's baseline: every buffer at its own address."""
        return self.fixed_nbytes + sum(buffer.nbytes for buffer in self.buffers.values())

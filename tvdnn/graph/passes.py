"""Passes: the kernel-level stages of a step over its buffers, and the Graph of all passes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from .buffer import Buffer, Fact, Form
from .network import Network, Op

# A buffer, and a range of its last axis; None: all of it.
BufferRange: TypeAlias = tuple[str, tuple[int, int] | None]


class Direction(Enum):
    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


class Collective(Enum):
    """What a pass of several processes does to a buffer that each of them has.

    A process's own range of the buffer is as long as that of each other one, in their order.
    """

    ALL_REDUCE = "all-reduce"  # the sum over all
    REDUCE_SCATTER = "reduce-scatter"  # the sum over all, in the own range alone
    ALL_GATHER = "all-gather"  # each range as its process has it


class Need(Enum):
    """The part of a buffer's values that a pass reads: it decides the forms of idle sections."""

    VALUES = "values"
    SIGN = "sign"
    ARGMAX = "argmax"


@dataclass(frozen=True, slots=True)
class Use:
    """A pass's use of one buffer.

    A launch over domain rows [a, b) touches buffer rows [a // per, ceil(b / per)), or every row if
    `whole`. A use with a halo reads pixel rows of the neighbouring row tiles. They lie in the
    sections before and after its own, which two further uses name.
    """

    buffer: str
    whole: bool = False
    per: int = 1  # domain rows of one buffer row
    need: Need = Need.VALUES
    channels: tuple[int, int] | None = None  # range of the last axis; None: all
    halo: tuple[int, int] = (0, 0)  # pixel rows above and below its row tile that it reads
    neighbour: int = 0  # -1, 1: the section before, after (at an end of the map the last); 0: own
    shape: tuple[int, ...] = ()  # of a sample where a view gives another than the buffer's
    forms: tuple[Form, ...] = ()  # of a read, the forms besides raw that the kernel can read
    also: tuple[Form, ...] = ()  # of a write, the forms that the kernel can leave beside raw
    exact: bool = False  # of a read by a product, whether every bit counts: it is no factor

    @property
    def range(self) -> BufferRange:
        """The buffer, and the range of its last axis."""
        return self.buffer, self.channels

    def rows(self, start: int, stop: int, buffer: Buffer) -> tuple[int, int]:
        """The buffer rows that a launch over domain rows [start, stop) touches."""
        if self.whole:
            return 0, buffer.rows
        first, last = start // self.per, -(-stop // self.per)
        if self.neighbour < 0:
            return max(0, first - buffer.section), first or min(buffer.section, buffer.rows)
        if self.neighbour > 0:
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


def overlap(first: tuple[int, int], second: tuple[int, int]) -> bool:
    """True if two ranges of channels have a channel in common."""
    return first[0] < second[1] and second[0] < first[1]


@dataclass(frozen=True, slots=True)
class Pass:
    """One kernel-level stage of an op's forward, backward or update.

    Its domain is the batch, rows [0, domain). A launch covers rows [a, b), with a and b multiples
    of `unit`, or b the end of the domain. The launches of a reduction run in index order, and its
    result is complete only after the last.
    """

    name: str
    op: str
    role: str
    direction: Direction
    domain: int
    unit: int  # rows; holds whole sections of every buffer used
    reads: tuple[Use, ...]
    writes: tuple[Use, ...]
    params: tuple[str, ...] = ()  # read, by name
    updates: tuple[str, ...] = ()  # written in place, by name
    reduction: bool = False
    # The least rows of its sums that a launch of the whole domain takes, or a number that has a
    # multiple of one row less than these more: the same bits come of all. 0: it takes all rows.
    least_sums: int = 0
    flops: float = 0.0  # of the whole domain
    nbytes: float = 0.0  # device-memory traffic of the whole domain
    attrs: Mapping[str, Any] = field(default_factory=dict)  # static settings besides the op's
    effects: bool = False  # changes state outside the buffers, which a recompute must not repeat
    # The processes that do this together, on the buffer that it writes. 0: it is of one alone.
    ranks: int = 0
    collective: Collective = Collective.ALL_REDUCE
    rounded: tuple[tuple[int, int] | None, ...] = ()  # by write, channels rounded to TF32
    # By write, what the values that a launch writes have in common.
    facts: tuple[frozenset[Fact], ...] = field(default=(), repr=False)
    # By buffer and form that a launch may read or leave, the bytes that it moves beyond `nbytes`.
    form_nbytes: Mapping[tuple[str, Form], float] = field(default_factory=dict)

    @property
    def splittable(self) -> bool:
        return self.unit < self.domain

    @property
    def read_buffers(self) -> frozenset[str]:
        return frozenset(use.buffer for use in self.reads)

    @property
    def written_buffers(self) -> frozenset[str]:
        return frozenset(use.buffer for use in self.writes)

    @property
    def used_buffers(self) -> frozenset[str]:
        return self.read_buffers | self.written_buffers

    @property
    def changes_parameters(self) -> bool:
        """True if a launch updates parameters or their gradients' sums. Statistics are neither."""
        return bool(self.updates) and not self.effects

    @property
    def reads_neighbours(self) -> bool:
        """True if a launch reads neighbouring row tiles. Its last write is then their scratch."""
        return any(use.neighbour for use in self.reads)


def must_be_separate(first: Pass, second: Pass) -> bool:
    """True if one pass writes a buffer of which the other reads neighbouring row tiles.

    Such passes cannot run block by block together. At the end of a block, the tile below it is not
    written yet, or the tile above the next block is overwritten.
    """
    return _writes_neighbours(first, second) or _writes_neighbours(second, first)


def _writes_neighbours(writer: Pass, reader: Pass) -> bool:
    read = {use.buffer for use in reader.reads if use.neighbour}
    return bool(read) and any(use.buffer in read for use in writer.writes)


@dataclass(frozen=True, slots=True)
class Graph:
    """A training (or evaluation) step of a network: passes in program order over buffers."""

    traced: Network  # before any rewrite, and without losses
    network: Network
    ops: Mapping[str, Op]
    buffers: Mapping[str, Buffer]
    passes: tuple[Pass, ...]
    inputs: Mapping[str, str]  # by buffer that the caller fills, its network value or target
    outputs: tuple[str, ...]  # buffers that the caller is given: maps, and gradients if asked for
    output_maps: tuple[str, ...]  # buffers of the network's outputs, in their order
    input_grads: Mapping[str, str]  # by input, the buffer of its gradient
    param_grads: Mapping[str, tuple[str, ...]]  # by parameter, its gradient's buffers, whole first
    phase_split: int  # first pass of the second phase (autograd mode), else the number of passes
    fixed: Mapping[str, int]  # by purpose, bytes outside the arena: parameters, optimizer state ...
    dtype: str
    chunk_size: int
    # By op, "conv" or "all": the first of vDNN's policies to offload its input.
    vdnn_traits: Mapping[str, str] = field(default_factory=dict)
    rounded_inputs: frozenset[str] = frozenset()  # inputs that are rounded to TF32
    rounded_ops: frozenset[str] = frozenset()  # ops whose outputs are rounded to TF32
    row_tiles: int = 1  # tiles of a sample's rows; passes take each tile as a sample
    # By parameter, the bucket in which its gradient lies, if there is one, and the range there.
    grads_in_buckets: Mapping[str, tuple[str, tuple[int, int]]] = field(default_factory=dict)
    # By range of a buffer, the parameter whose gradient it is.
    param_of_grad: Mapping[BufferRange, str] = field(init=False, compare=False, repr=False)
    _ranges_of_buckets: Mapping[str, Sequence[BufferRange]] = field(
        init=False, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        pairs = ((param, grad) for param, grads in self.param_grads.items() for grad in grads)
        found: dict[BufferRange, str] = {(grad, None): param for param, grad in pairs}
        of_buckets: dict[str, list[BufferRange]] = {}
        for param, held in self.grads_in_buckets.items():
            found[held] = param
            of_buckets.setdefault(held[0], []).append(held)
        object.__setattr__(self, "param_of_grad", found)
        object.__setattr__(self, "_ranges_of_buckets", of_buckets)

    def touched(self, uses: Iterable[Use]) -> frozenset[object]:
        """The buffers of uses. In the place of a bucket there are its ranges, each by itself."""
        if not self.grads_in_buckets:
            return frozenset(use.buffer for use in uses)
        found = set[object]()
        for use in uses:
            ranges = self._ranges_of_buckets.get(use.buffer)
            if ranges is None:
                found.add(use.buffer)
            else:
                found.update(ranges if use.channels is None else [use.range])
        return frozenset(found)

    @property
    def batch(self) -> int:
        """The rows of every map: the row tiles of all samples."""
        return self.network.batch * self.row_tiles

    def is_eager(self, pass_: Pass) -> bool:
        """True if torch's own code runs the op of a pass."""
        return self.ops[pass_.op].kind == "opaque"

    @property
    def fixed_nbytes(self) -> int:
        return sum(self.fixed.values())

    @property
    def baseline_nbytes(self) -> int:
        """Bytes with every buffer at its own address: vDNN's baseline, network-wide allocation."""
        return self.fixed_nbytes + sum(buffer.nbytes for buffer in self.buffers.values())

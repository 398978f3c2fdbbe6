"""Schedule: steps on lanes with static addresses and waits, which every reader follows."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from itertools import accumulate
from typing import Final, NamedTuple

from ...graph import RAW, Form, Graph
from ...placement import aligned
from .budgets import NO_TIERS, TierBudgets
from .page_map import PageMap
from .plan import FILE, HOST, PEER, Plan

COUNT_NBYTES: Final = 4
COUNTS: Final = "counts of codes"


class Lane(IntEnum):
    COMPUTE = 0
    OFFLOAD = 1
    PREFETCH = 2
    FILE_WRITE = 3
    FILE_READ = 4
    PEER_OFFLOAD = 5
    PEER_PREFETCH = 6
    REDUCE = 7  # sums over the processes that train together


class Space(IntEnum):
    """The memory that holds bytes.

    The device arena, the pinned host slab, a file, or the arena of another GPU.
    """

    ARENA = 0
    SLAB = 1
    FILE = 2
    PEER = 3


class LanePair(NamedTuple):
    """The two lanes of a link: sections go out from one space to another, and back."""

    tier: str  # whose link it is
    out: Lane
    back: Lane
    near: Space
    far: Space
    on_device: bool  # the device copies; else host threads do


# Sections reach the file through the slab: an offload goes before a write.
LANE_PAIRS: Final = (
    LanePair(HOST, Lane.OFFLOAD, Lane.PREFETCH, Space.ARENA, Space.SLAB, on_device=True),
    LanePair(FILE, Lane.FILE_WRITE, Lane.FILE_READ, Space.SLAB, Space.FILE, on_device=False),
    LanePair(PEER, Lane.PEER_OFFLOAD, Lane.PEER_PREFETCH, Space.ARENA, Space.PEER, on_device=True),
)
# Those of passes. The others copy.
LAUNCH_LANES: Final = (Lane.COMPUTE, Lane.REDUCE)
COPY_LANES: Final = tuple(lane for pair in LANE_PAIRS for lane in (pair.out, pair.back))
BACK_LANES: Final = tuple(pair.back for pair in LANE_PAIRS)
SOURCES: Final = {
    lane: space
    for pair in LANE_PAIRS
    for lane, space in ((pair.out, pair.near), (pair.back, pair.far))
}
DESTINATIONS: Final = {
    lane: space
    for pair in LANE_PAIRS
    for lane, space in ((pair.out, pair.far), (pair.back, pair.near))
}
_PAIR_OF: Final = {pair.tier: pair for pair in LANE_PAIRS}
# By tier, the links over which sections go there from the device, in their order.
ROUTES: Final = {
    HOST: (_PAIR_OF[HOST],),
    FILE: (_PAIR_OF[HOST], _PAIR_OF[FILE]),
    PEER: (_PAIR_OF[PEER],),
}
# Offsets of sections in the file, and of their bounce buffers in the slab, are multiples of this
# number of bytes, as reads and writes past the page cache ask.
FILE_ALIGNMENT: Final = 4096


class Action(Enum):
    LAUNCH = "launch"
    COPY = "copy"
    RECODE = "recode"


class Operand(NamedTuple):
    """Rows [start, stop) of a buffer: `nbytes` contiguous bytes at address `offset` of a space.

    `form` is the form of the values.
    """

    buffer: str
    start: int
    stop: int
    space: Space
    offset: int
    nbytes: int
    form: Form = RAW

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


class Step(NamedTuple):
    """One launch of a pass over domain rows [start, stop), or one copy or recode of sections.

    Steps of a lane run in the order of the schedule. A recode reads and writes the same rows in two
    forms, on the compute lane. The tail of a code is a second operand, in the slab. A recode on
    the offload lane encodes from the arena straight to the slab.
    """

    lane: Lane
    action: Action
    slot: int  # of the plan
    pass_index: int  # -1: a copy or a recode
    start: int
    stop: int
    # In the order of the pass's uses. Of a copy or a recode: the source.
    reads: tuple[Operand, ...]
    # In the order of the pass's uses, then the codes that the launch leaves beside them. Of a copy
    # or a recode: the destination.
    writes: tuple[Operand, ...]
    waits: tuple[int, ...] = ()  # earlier steps of other lanes that must have ended
    recompute: bool = False
    count_word: int = -1  # of a recode to a packed code: the word that gets its number of values

    @property
    def forms(self) -> tuple[tuple[str, Form], ...]:
        """By buffer, the forms besides raw that a launch reads or leaves."""
        operands = (*self.reads, *self.writes)
        return tuple((each.buffer, each.form) for each in operands if each.form != RAW)

    @property
    def copied_nbytes(self) -> int:
        """The bytes that go over a link of the device to other memory."""
        return self.writes[0].nbytes if self.lane in COPY_LANES else 0


class Residency(NamedTuple):
    """A section at an address of the arena, from the first of its steps to the last."""

    buffer: str
    section: int
    offset: int  # address in the arena
    nbytes: int
    steps: tuple[int, ...]  # the steps that use it, in order
    form: Form = RAW


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps in a valid total order, the sizes of arena and slab, and the budgets."""

    graph: Graph
    plan: Plan
    steps: tuple[Step, ...]
    residencies: tuple[Residency, ...]  # of all sections
    phase_split: int  # first step of the second phase (autograd mode), else the number of steps
    arena_nbytes: int
    slab_nbytes: int
    budget_nbytes: int | None
    host_budget_nbytes: int | None
    num_counts: int = 0  # words outside the arena, each with the number of values of a packed code
    pages: PageMap | None = None  # of a paged arena
    file_nbytes: int = 0
    peer_nbytes: int = 0
    tiers: TierBudgets = NO_TIERS  # beside the host's

    @property
    def sizes(self) -> Mapping[Space, int]:
        """By space, its bytes; of a paged arena the physical ones."""
        away = {Space.SLAB: self.slab_nbytes, Space.FILE: self.file_nbytes}
        return {Space.ARENA: self.arena_nbytes, **away, Space.PEER: self.peer_nbytes}

    @property
    def fixed(self) -> Mapping[str, int]:
        """By purpose, the device bytes outside the arena."""
        counts = {COUNTS: counts_nbytes(self.num_counts)} if self.num_counts else {}
        return {**self.graph.fixed, **counts}

    @property
    def addressed_nbytes(self) -> int:
        """The addresses of the arena; of a paged one there are more than bytes."""
        return self.pages.virtual_nbytes if self.pages else self.arena_nbytes

    @property
    def peak_nbytes(self) -> int:
        """Device bytes of the network: those outside the arena, and the arena."""
        return sum(self.fixed.values()) + self.arena_nbytes

    @property
    def max_live_nbytes(self) -> int:
        """The most bytes of residencies live at one step: a lower bound on the arena.

        A raw input is live from the start of its phase, a raw output until the end of its phase.
        """
        change, filled = Counter[int](), set[tuple[str | None, int]]()
        inputs, outputs = frozenset(self.graph.inputs), frozenset(self.graph.outputs)
        split = self.phase_split
        for each in self.residencies:
            first, last = each.steps[0], each.steps[-1]
            name = each.buffer if each.form == RAW else None
            if name in inputs and (name, each.section) not in filled:
                filled.add((name, each.section))
                first = 0 if first < split else split
            if name in outputs:
                last = (split if last < split else len(self.steps)) - 1
            change.update({first: each.nbytes})
            change.subtract({last + 1: each.nbytes})
        return max(accumulate(change[step] for step in sorted(change)), default=0)

    @property
    def fragmentation(self) -> float:
        """The share of the arena that holds no live bytes at the step with the most."""
        return 1.0 - self.max_live_nbytes / self.arena_nbytes if self.arena_nbytes else 0.0

    @property
    def offloaded_nbytes(self) -> int:
        """The bytes that leave the device in a step."""
        out = {pair.out for pair in LANE_PAIRS if pair.near is Space.ARENA}
        return sum(step.copied_nbytes for step in self.steps if step.lane in out)

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The lanes to show: compute, those of the link to the host, and others that have steps."""
        shown = {Lane.COMPUTE, Lane.OFFLOAD, Lane.PREFETCH, *(step.lane for step in self.steps)}
        return tuple(sorted(shown))

    def step_name(self, index: int) -> str:
        """The step's name in errors and traces, as "features.2 grad_weight [8, 16)"."""

        step = self.steps[index]
        if step.action is Action.COPY:
            (source,) = step.reads
            code = f"{source.form} of " if source.form != RAW else ""
            rows = f"{source.buffer} [{step.start}, {step.stop})"
            return f"{lane_name(step.lane)} {code}{rows}"
        if step.action is Action.RECODE:
            source, target = step.reads[0], step.writes[0]
            rows = f"{source.buffer} [{step.start}, {step.stop})"
            to = f"to {target.form}" + (" on the host" if target.space is Space.SLAB else "")
            return f"recode {rows} from {source.form} {to}"
        return f"{self.graph.passes[step.pass_index].name} [{step.start}, {step.stop})"


def lane_name(lane: Lane) -> str:
    """The name of a lane in errors, reports and traces, as "file write"."""
    return lane.name.lower().replace("_", " ")


def counts_nbytes(num_counts: int) -> int:
    """Device bytes of the words that hold so many counts."""
    return aligned(COUNT_NBYTES * num_counts)

"""Schedule: frozen steps on three lanes, with static addresses and waits, for all readers."""

from collections import Counter
from dataclasses import dataclass
from enum import Enum, IntEnum
from itertools import accumulate
from typing import NamedTuple

from ...graph import Graph
from .plan import Plan


class Lane(IntEnum):
    COMPUTE = 0
    OFFLOAD = 1
    PREFETCH = 2


class Space(IntEnum):
    """Where bytes lie: the device arena, or the pinned host slab."""

    ARENA = 0
    SLAB = 1


class Action(Enum):
    LAUNCH = "launch"
    COPY = "copy"


class Operand(NamedTuple):
    """Rows [start, stop) of a buffer at byte `offset` of a space, `nbytes` long and contiguous."""

    buffer: str
    start: int
    stop: int
    space: Space
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


class Step(NamedTuple):
    """One launch of a pass over domain rows [start, stop), or one copy of a section.

    Steps of a lane run in the order of the schedule. `waits` are indices of earlier steps on other
    lanes that must have finished first. `reads` and `writes` are in the order of the pass's uses
    (for a copy: source and destination); `slot` is the plan's slot that the step belongs to.
    """

    lane: Lane
    action: Action
    slot: int
    pass_index: int
    start: int
    stop: int
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]
    waits: tuple[int, ...] = ()
    recompute: bool = False

    @property
    def copied_nbytes(self) -> int:
        return self.reads[0].nbytes if self.action is Action.COPY else 0


class Residency(NamedTuple):
    """One stay of a section in the arena: used by `steps` in order, and free after the last."""

    buffer: str
    section: int
    offset: int
    nbytes: int
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps in a valid total order, the arena and slab they use, the budgets they were made for.

    `residencies` are the stays of all sections. `cut` is the index of the first step of the second
    half where the step is run in two halves (autograd mode), else the number of steps.
    """

    graph: Graph
    plan: Plan
    steps: tuple[Step, ...]
    residencies: tuple[Residency, ...]
    cut: int
    arena_nbytes: int
    slab_nbytes: int
    budget_nbytes: int | None
    host_budget_nbytes: int | None

    @property
    def peak_nbytes(self) -> int:
        """Device bytes of the network: what lies outside the arena, and the arena."""
        return self.graph.fixed_nbytes + self.arena_nbytes

    @property
    def alive_nbytes(self) -> int:
        """Most bytes of residencies that are there at one step: no placement takes fewer.

        An input is there from the start of its half of the step, an output until the end of it.
        """
        change, filled = Counter[int](), set[tuple[str, int]]()
        inputs, outputs = frozenset(self.graph.inputs), frozenset(self.graph.outputs)
        for stay in self.residencies:
            first, last = stay.steps[0], stay.steps[-1]
            if stay.buffer in inputs and (stay.buffer, stay.section) not in filled:
                filled.add((stay.buffer, stay.section))
                first = 0 if first < self.cut else self.cut
            if stay.buffer in outputs:
                last = (self.cut if last < self.cut else len(self.steps)) - 1
            change.update({first: stay.nbytes})
            change.subtract({last + 1: stay.nbytes})
        return max(accumulate(change[step] for step in sorted(change)), default=0)

    @property
    def fragmentation(self) -> float:
        """The share of the arena that is idle even at the step with most bytes there."""
        return 1.0 - self.alive_nbytes / self.arena_nbytes if self.arena_nbytes else 0.0

    @property
    def offloaded_nbytes(self) -> int:
        return sum(step.copied_nbytes for step in self.steps if step.lane is Lane.OFFLOAD)

    def step_name(self, index: int) -> str:
        """The step in words, for errors and traces: "features.2 grad_weight [8, 16)"."""
        step = self.steps[index]
        if step.action is Action.COPY:
            return f"{step.lane.name.lower()} {step.reads[0].buffer} [{step.start}, {step.stop})"
        return f"{self.graph.passes[step.pass_index].name} [{step.start}, {step.stop})"

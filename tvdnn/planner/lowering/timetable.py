"""Timetable: the launches and copies of a plan in one order, with their predicted times."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...graph import Graph
from ..ir.costs import Costs
from ..ir.plan import Plan
from ..ir.schedule import BACK_LANES, Lane
from .build_program import build_program
from .launch_limits import MemoryLimit
from .list_scheduler import CapacityError, Item, ListScheduler, required_nbytes
from .program import Program

# Share of the launches' seconds up to which a step counts as never waiting.
MAX_WAIT_SHARE = 0.005


@dataclass(frozen=True, slots=True)
class Timetable:
    """A plan's launches and copies in one order, with predicted seconds."""

    program: Program
    items: tuple[Item, ...]
    seconds: float  # end of the last launch or copy
    compute_s: float  # sum of the launches
    begins: Sequence[float]  # by live interval, the second at which it takes its bytes
    ends: Sequence[float]  # by live interval, the second at which it frees its bytes

    @classmethod
    def within(
        cls,
        prog: Program,
        costs: Costs,
        limits: MemoryLimit,
        *,
        grain: int = 1,
        patient: bool = False,
    ) -> "Timetable":
        """The timetable of a program with at most `limits` live bytes at each launch.

        Sections count as multiples of `grain` bytes. `patient` is the list scheduler's. Raises
        CapacityError where the launches require more.
        """
        sizes = [-(-live.nbytes // grain) * grain for live in prog.intervals]
        required = required_nbytes(prog, sizes)
        limits = np.broadcast_to(limits, required.shape)
        if (required > limits).any():
            raise CapacityError(f"launch {(required - limits).argmax()} requires too many bytes")
        scheduler = ListScheduler(prog, costs, limits, required, sizes, patient=patient)
        return cls.from_scheduler(scheduler)

    @classmethod
    def from_scheduler(cls, scheduler: ListScheduler) -> "Timetable":
        """The timetable that the scheduler, which has not run yet, makes of its program."""
        items = tuple(scheduler.run())
        seconds = scheduler.end_s, scheduler.compute_s
        return cls(scheduler.program, items, *seconds, scheduler.begins, scheduler.ends)

    @property
    def waits(self) -> bool:
        """Whether the step waits for copies."""
        return self.seconds > (1 + MAX_WAIT_SHARE) * self.compute_s

    @property
    def phase_split(self) -> int:
        """The first item of the second phase (autograd mode), else the number of items.

        All offloads of the first phase have ended before it. Prefetches ahead of the second phase's
        first launch belong to the second phase.
        """
        if self.program.phase_split == len(self.program.launches):
            return len(self.items)
        launch = self.items.index(Item(Lane.COMPUTE, self.program.phase_split))
        ahead = (i for i in range(launch) if self.items[i].lane not in BACK_LANES)
        return 1 + max(ahead, default=-1)


def schedule_within(
    graph: Graph,
    plan: Plan,
    costs: Costs,
    limits: MemoryLimit,
    *,
    grain: int = 1,
    patient: bool = False,
) -> Timetable | None:
    """`Timetable.within` of the plan; None where its launches require more bytes."""
    prog = build_program(graph, plan)
    try:
        return Timetable.within(prog, costs, limits, grain=grain, patient=patient)
    except CapacityError:
        return None

"""Ordered: the launches and copies of a plan in an order, and the seconds that it predicts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...graph import Graph
from ..ir.costs import Costs
from ..ir.plan import Plan
from .limits import Caps
from .list_scheduler import CapacityError, Entry, Event, Scheduler, demand
from .program import Program, program


@dataclass(frozen=True, slots=True)
class Ordered:
    """A plan's launches and stays, and an order of its steps with the seconds that it predicts.

    Of these `compute_s` are the launches. `begins` and `ends` are the seconds at which each stay
    takes its bytes and frees them.
    """

    plan: Plan
    program: Program
    entries: tuple[Entry, ...]
    seconds: float
    compute_s: float
    begins: Sequence[float]
    ends: Sequence[float]

    @classmethod
    def under(
        cls, graph: Graph, plan: Plan, prog: Program, costs: Costs, caps: Caps, *, grain: int = 1
    ) -> "Ordered":
        """The steps of a plan and its program with at most `caps` bytes by each launch.

        Every section counts as a multiple of `grain` bytes. Raises CapacityError where no order
        keeps that.
        """
        held = [-(-stay.nbytes // grain) * grain for stay in prog.residencies]
        needed = demand(prog, held)
        caps = np.broadcast_to(caps, needed.shape)
        if (needed > caps).any():
            worst = int((needed - caps).argmax())
            raise CapacityError(worst, int(needed[worst]))
        return cls.by(Scheduler(graph, prog, costs, caps, needed, held, plan.sync), plan, prog)

    @classmethod
    def by(cls, scheduler: Scheduler, plan: Plan, prog: Program) -> "Ordered":
        """The steps of a plan and its program as the scheduler, which has not run yet, has them."""
        entries = tuple(scheduler.run())
        seconds = scheduler.end_s, scheduler.compute_s
        return cls(plan, prog, entries, *seconds, scheduler.begins, scheduler.ends)

    @property
    def phase_split(self) -> int:
        """The second half's first place in the order (autograd mode), else the number of places.

        Before it all offloads of the first half have ended; prefetches ahead of its first launch
        belong to it.
        """
        if self.program.phase_split == len(self.program.launches):
            return len(self.entries)
        launch = self.entries.index(Entry(Event.LAUNCH, self.program.phase_split))
        ahead = (i for i in range(launch) if self.entries[i].event is not Event.PREFETCH)
        return 1 + max(ahead, default=-1)


def ordered(
    graph: Graph, plan: Plan, costs: Costs, caps: Caps, *, grain: int = 1
) -> Ordered | None:
    """The plan's steps in an order as `Ordered.under` gives it; None if none has so few bytes."""
    try:
        return Ordered.under(graph, plan, program(graph, plan), costs, caps, grain=grain)
    except CapacityError:
        return None

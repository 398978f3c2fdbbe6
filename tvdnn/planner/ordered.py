"""Ordered: the launches and copies of a plan in an order, and the seconds that it predicts."""

from dataclasses import dataclass

from ..graph import Graph
from .costs import Costs
from .crowding import Caps
from .launches import Program, program
from .order import CapacityError, Entry, Event, timed_order
from .plan import Plan


@dataclass(frozen=True, slots=True)
class Ordered:
    """A plan's launches and stays, and an order of its steps with the seconds that it predicts.

    Of these `compute_s` are the launches.
    """

    plan: Plan
    program: Program
    entries: tuple[Entry, ...]
    seconds: float
    compute_s: float

    @classmethod
    def under(
        cls, graph: Graph, plan: Plan, prog: Program, costs: Costs, caps: Caps, *, grain: int = 1
    ) -> "Ordered":
        """The steps of a plan and its program with at most `caps` bytes by each launch.

        Every section counts as a multiple of `grain` bytes. Raises CapacityError where no order
        keeps that.
        """
        found = timed_order(graph, prog, costs, caps, sync=plan.sync, grain=grain)
        return cls(plan, prog, *found)

    @property
    def cut(self) -> int:
        """The second half's first place in the order (autograd mode), else the number of places.

        Before it all offloads of the first half have ended; prefetches ahead of its first launch
        belong to it.
        """
        if self.program.cut == len(self.program.launches):
            return len(self.entries)
        launch = self.entries.index(Entry(Event.LAUNCH, self.program.cut))
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

"""Estimates of a plan's step from its timetable alone, without a schedule."""

from dataclasses import dataclass
from math import inf

from ...graph import Graph
from ..ir.costs import Costs
from ..ir.plan import Plan
from .arena_layout import place_arena
from .timetable import schedule_within

# Share of the launches' seconds up to which a step counts as never waiting.
MAX_WAIT_SHARE = 0.005


@dataclass(frozen=True, slots=True)
class Estimate:
    """Predicted seconds of a step."""

    seconds: float
    waits: bool  # for copies
    fits: bool  # takes less than the given seconds and bytes


def estimate(
    graph: Graph, plan: Plan, costs: Costs, limit: int, *, capacity: int, below_s: float = inf
) -> Estimate | None:
    """The estimate of `plan` with at most `limit` live bytes; None where no timetable has so few.

    The arena is placed only if the step takes less than `below_s` seconds, and only as tightly as
    `capacity` bytes ask.
    """
    timetable = schedule_within(graph, plan, costs, limit)
    if timetable is None:
        return None
    fits = timetable.seconds < below_s
    fits = fits and place_arena(timetable, target=capacity).nbytes <= capacity
    waits = timetable.seconds > (1 + MAX_WAIT_SHARE) * timetable.compute_s
    return Estimate(timetable.seconds, waits, fits)

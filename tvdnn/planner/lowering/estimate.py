"""Estimate: what a plan's step takes, by its order alone, and whether its bytes fit."""

from dataclasses import dataclass
from math import inf

from ...graph import Graph
from ..ir.costs import Costs
from ..ir.plan import Plan
from .arena import place_arena
from .timetable import ordered

LITTLE_WAIT = 0.005  # of the time of all launches, up to which a step counts as never waiting


@dataclass(frozen=True, slots=True)
class Estimate:
    """Predicted seconds of a step, and whether it waits for copies.

    `fits` tells that it takes less time and fewer bytes than were asked for.
    """

    seconds: float
    waits: bool
    fits: bool


def estimate(
    graph: Graph, plan: Plan, costs: Costs, cap: int, *, room: int, below_s: float = inf
) -> Estimate | None:
    """What the order of `plan` under `cap` takes; None where no order keeps under it.

    Bytes are placed more tightly only until they fit `room`, and not at all where the step does not
    take less than `below_s`.
    """
    steps = ordered(graph, plan, costs, cap)
    if steps is None:
        return None
    fits = steps.seconds < below_s and place_arena(graph, steps, enough=room).nbytes <= room
    return Estimate(steps.seconds, steps.seconds > (1 + LITTLE_WAIT) * steps.compute_s, fits)

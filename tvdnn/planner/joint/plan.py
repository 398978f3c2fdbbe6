"""The joint plan: the fastest that the joint search finds, beside the optimum of its programs."""

from collections.abc import Iterator
from dataclasses import replace

from ..ir.plan import OptimalityReport
from ..ir.schedule import Schedule
from ..problem import GraphProblem
from ..timing.simulate import simulate
from .columns import Columns
from .lp import Solution
from .search import JointSearch, fastest_joint

CLOSE_ENOUGH = 1.03  # times the least optimum: no faster plan is looked for
LEAST_PLANS = 6  # a network that affords fewer of so much work has no programs: they take too long
WORK = 60_000  # sections of maps and passes
MADE, AWAY = "made again", "away"


def with_joint_plan(problem: GraphProblem, best: Schedule, policy: str) -> Schedule:
    """The schedule, or a faster one of the joint search. Its plan tells how near the optimum is.

    The optimum is the least of all orders' linear programs. Networks too deep for these have none.
    """
    if problem.affordable_plans(WORK) < LEAST_PLANS:
        return best
    search = JointSearch(problem, policy)
    solved = search.solved()
    if not solved:
        return best
    order, least = min(solved, key=lambda item: item[1].step_s)
    best_s = simulate(best, problem.costs).step_s
    if best_s > CLOSE_ENOUGH * least.step_s:
        found = fastest_joint(search, solved, best_s)
        best, best_s = (found.schedule, found.seconds) if found else (best, best_s)
    alternatives = dict(_alternatives(order.columns, least))
    report = OptimalityReport(best_s, least.step_s, least.sensitivities, alternatives)
    return replace(best, plan=replace(best.plan, optimality=report))


def _alternatives(columns: Columns, least: Solution) -> Iterator[tuple[str, tuple[str, float]]]:
    """By buffer the cheapest way not taken by the optimum, and the seconds that it adds."""
    ways: dict[str, tuple[str, float]] = {}
    names = [(columns.classes[each.number].buffer, AWAY) for each in columns.away]
    names += [(each.buffer, MADE) for each in columns.absent]
    shares = (*least.away, *least.absent)
    taken = {name for name, share in zip(names, shares, strict=True) if share > 0}
    for (buffer, way), price in zip(names, least.prices.tolist(), strict=True):
        if (buffer, way) not in taken and price < ways.get(buffer, (way, float("inf")))[1]:
            ways[buffer] = way, price
    yield from sorted(ways.items())

"""The joint plan: the fastest that the joint search finds, beside the optimum of its programs."""

from collections.abc import Iterator
from dataclasses import replace

from ..ir.plan import OptimalityReport, Plan
from ..ir.schedule import Schedule
from ..lowering.segments import Variant
from ..problem import GraphProblem
from .columns import Columns
from .lp import Solution
from .orders import first_order, orders
from .ranked import RankedColumns
from .search import MOST_ORDERS, JointSearch, fastest_joint, fastest_ranked

LEAST_PLANS = 6  # a network that affords fewer of so much work has no programs: they take too long
WORK = 60_000  # sections of maps and passes
MADE, AWAY = "made again", "away"


def joint_schedule(problem: GraphProblem, policy: str) -> Schedule | None:
    """The fastest schedule of the joint search; None where it finds none.

    Its plan tells how near the optimum is, the least of all orders' linear programs. Networks too
    deep for these have none.
    """
    search = JointSearch(problem, policy)
    if problem.affordable_plans(WORK) < LEAST_PLANS:
        found = fastest_ranked(search, problem.once(first_order))
        return found.schedule if found else None
    solved = search.solved()
    firsts = range(0, len(solved), MOST_ORDERS)  # others where these find no places
    tried = (fastest_joint(search, solved[first:]) for first in firsts)
    found = next(filter(None, tried), None)
    if found is None:
        return None
    order, least = min(solved, key=lambda item: item[1].step_s)
    alternatives = dict(_alternatives(order.columns, least))
    report = OptimalityReport(found.seconds, least.step_s, least.sensitivities, alternatives)
    plan = replace(found.schedule.plan, optimality=report)
    return replace(found.schedule, plan=plan)


def leanest_plans(problem: GraphProblem) -> Iterator[Plan]:
    """Plans of the smallest blocks that make again all they can, and offload all idle sections."""
    for order in problem.once(orders):
        if order.skeleton.choice.rest is Variant.MEMORY:
            ranked = RankedColumns(order)
            skeleton = order.woven(ranked.choice(len(ranked.columns)))
            yield skeleton.offloading(skeleton.all_idle)


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

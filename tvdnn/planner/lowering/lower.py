"""Lowering: from a plan to a schedule inside a budget.

The steps are ordered with as many bytes at once as the budget has, so that copies come early, and
the residencies placed. Where they find no place, that is tried again with fewer bytes at once.
"""

from ...graph import Graph
from ...placement import aligned
from ..ir.costs import Costs
from ..ir.plan import Plan
from ..ir.schedule import Schedule
from .arena import FEW_TRIALS, MANY_TRIALS, Arena, place_arena
from .emit import assembled
from .floor import AtFloor
from .lifetimes import COOL_DOWN
from .list_scheduler import demand
from .program import Program, program
from .timetable import Ordered

TIGHTEN_ATTEMPTS = 6
LAST_SLACKS = (1.0, 1.05, 1.2)  # caps that are tried last, in demands: which packs best varies


def lower(
    graph: Graph,
    plan: Plan,
    costs: Costs,
    *,
    budget: int | None = None,
    host_budget: int | None = None,
) -> Schedule:
    """The schedule of `plan` inside `budget` device bytes and `host_budget` pinned bytes.

    Raises BudgetError with the plan's floor where that is above the budget, HostMemoryError where
    its copies do not fit.
    """
    schedule = lowered(graph, plan, costs, budget=budget, host_budget=host_budget)
    if schedule is not None:
        return schedule
    return AtFloor.of(graph, plan, costs).schedule(budget=budget, host_budget=host_budget)


def lowered(
    graph: Graph,
    plan: Plan,
    costs: Costs,
    *,
    budget: int | None = None,
    host_budget: int | None = None,
    cap: int | None = None,
) -> Schedule | None:
    """The plan's schedule with copies ahead of their uses, None where these find no place.

    `cap` are the bytes of arena under which orders are tried first. Raises HostMemoryError where
    its copies do not fit.
    """
    room = None if budget is None else budget - graph.fixed_nbytes
    found = _fit(graph, plan, costs, room, cap)
    return found and assembled(graph, *found, budget=budget, host_budget=host_budget)


def _fit(
    graph: Graph, plan: Plan, costs: Costs, room: int | None, cap: int | None
) -> tuple[Ordered, Arena] | None:
    """An order and its placement within `room`, None where none is found.

    Where the bytes fit but their placement does not, the order is made again under a tighter cap,
    at last under those at and little above the demand.
    """
    prog, enough = program(graph, plan), room
    if room is None:
        room = sum(aligned(stay.nbytes) for stay in prog.residencies)
    cap, least = room if cap is None else cap, int(demand(prog).max(initial=0))
    if least > room:
        return None
    for _ in range(TIGHTEN_ATTEMPTS):
        if cap < least:
            break
        steps = Ordered.under(graph, plan, prog, costs, cap)
        for rest in (COOL_DOWN, 0) if plan.transfers else (0,):
            arena = place_arena(graph, steps, cool_down=rest, enough=enough, trials=FEW_TRIALS)
            if arena.nbytes <= room:
                return steps, arena
        cap -= max((arena.nbytes - room) // 2, cap // 64)
    steps, arena = _tightest(graph, plan, prog, costs)
    return (steps, arena) if arena.nbytes <= room else None


def _tightest(graph: Graph, plan: Plan, prog: Program, costs: Costs) -> tuple[Ordered, Arena]:
    """The order that takes the fewest bytes, of those under caps at and little above the demand."""
    least = int(demand(prog).max(initial=0))
    moves = any(stay.fetched for stay in prog.residencies)
    caps = [round(least * slack) for slack in (LAST_SLACKS if moves else LAST_SLACKS[:1])]
    orders = [Ordered.under(graph, plan, prog, costs, cap) for cap in caps]
    steps = min(orders, key=lambda each: place_arena(graph, each).nbytes)
    return steps, place_arena(graph, steps, trials=MANY_TRIALS)

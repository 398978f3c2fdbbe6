"""Lowering: the schedule of a plan inside a budget.

The steps are scheduled with as many live bytes as the budget has, for early copies. The live
intervals are then placed. Where they do not fit, both are tried again with fewer live bytes.
"""

from ...errors import HostMemoryError
from ...graph import Graph
from ...placement import aligned
from ..ir.budgets import Budgets
from ..ir.costs import Costs
from ..ir.plan import Plan
from ..ir.schedule import Schedule, counts_nbytes
from .arena_layout import FEW_TRIALS, MANY_TRIALS, ArenaLayout, place_arena
from .build_program import build_program
from .emit import emit_schedule
from .lifetimes import REUSE_DELAY
from .list_scheduler import required_nbytes
from .program import Program
from .spill import SPILL_SHARES, with_spills
from .timetable import Timetable

# Attempts with fewer live bytes each, before limits near the required bytes are tried.
TIGHTEN_ATTEMPTS = 6
# Limits that are tried last, as multiples of the required bytes: which one packs best varies.
LAST_SLACKS = (1.0, 1.05, 1.2)


def lower_with_prefetch(
    graph: Graph,
    plan: Plan,
    costs: Costs,
    budgets: Budgets,
    limit: int | None = None,
) -> Schedule | None:
    """The schedule of `plan` with copies ahead of their uses; None where it does not fit.

    `limit` is the most live bytes in the first attempt, by default the arena's capacity. What a
    tier cannot hold goes to the next. Raises HostMemoryError where a tier's budget is exceeded.
    """
    spills = len(budgets.tiers.order) > 1
    for share in SPILL_SHARES if spills else SPILL_SHARES[-1:]:
        prog = build_program(graph, with_spills(graph, plan, budgets, share))
        target = None if budgets.arena is None else budgets.arena - counts_nbytes(len(prog.counts))
        found = _fit(prog, costs, target, limit)
        try:
            return found and emit_schedule(*found, budgets)
        except HostMemoryError:
            if share == SPILL_SHARES[-1]:
                raise
    raise AssertionError


def _fit(
    prog: Program, costs: Costs, target: int | None, limit: int | None
) -> tuple[Timetable, ArenaLayout] | None:
    """A timetable and an arena of at most `target` bytes; None where there is none.

    Where the arena is too large, the plan is scheduled again with fewer live bytes, at last with
    limits near the required bytes.
    """
    everything = sum(aligned(live.nbytes) for live in prog.intervals)
    capacity = everything if target is None else target
    required = int(required_nbytes(prog).max(initial=0))
    limit = capacity if limit is None else limit
    if required > capacity:
        return None
    for _ in range(TIGHTEN_ATTEMPTS):
        if limit < required:
            break
        steps = Timetable.within(prog, costs, limit)
        for delay in (REUSE_DELAY, 0) if prog.plan.transfers else (0,):
            arena = place_arena(steps, reuse_delay=delay, target=target, trials=FEW_TRIALS)
            if arena.nbytes <= capacity:
                return steps, arena
        limit -= max((arena.nbytes - capacity) // 2, limit // 64)
    steps, arena = _smallest(prog, costs)
    return (steps, arena) if arena.nbytes <= capacity else None


def _smallest(prog: Program, costs: Costs) -> tuple[Timetable, ArenaLayout]:
    """The timetable with the smallest arena, of those with limits near the required bytes."""
    required = int(required_nbytes(prog).max(initial=0))
    has_copies = any(live.is_prefetched for live in prog.intervals)
    limits = [round(required * slack) for slack in (LAST_SLACKS if has_copies else LAST_SLACKS[:1])]
    timetables = [Timetable.within(prog, costs, limit) for limit in limits]
    steps = min(timetables, key=lambda each: place_arena(each).nbytes)
    return steps, place_arena(steps, trials=MANY_TRIALS)

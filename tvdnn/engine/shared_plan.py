"""One plan for all processes that train together."""

from collections.abc import Callable

from ..planner.ir.costs import Costs, slowest
from ..planner.ir.schedule import Schedule
from ..planner.verify.check import check
from .process_group import TrainingGroup


def plan_together(
    group: TrainingGroup, costs: Costs, batch: int, plan: Callable[[Costs], Schedule]
) -> tuple[Costs, Schedule]:
    """The costs of the slowest process, and the schedule that the first makes by them.

    All processes call this at once. Where their batches differ, each has a schedule of its own.
    What the first process raises, all raise.
    """
    costs = slowest(group.all_of(costs))
    if len(set(group.all_of(batch))) > 1:
        return costs, group.unless_one_fails(lambda: plan(costs))
    schedule = group.from_first(lambda: plan(costs))
    check(schedule)
    return costs, schedule

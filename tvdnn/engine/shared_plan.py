"""One plan for all processes that train together."""

from collections.abc import Callable
from dataclasses import replace

from ..graph import Graph
from ..planner.ir.costs import Costs, slowest
from ..planner.ir.schedule import Schedule
from ..planner.replan import sendable
from ..planner.verify.check import check
from .process_group import TrainingGroup


def plan_together(
    group: TrainingGroup, costs: Costs, graph: Graph, plan: Callable[[Costs], Schedule]
) -> tuple[Costs, Schedule]:
    """The costs of the slowest process, and the schedule that the first makes by them.

    All processes call this at once, each with its graph of the step, whose functions it cannot
    send. Where their batches differ, each has a schedule of its own. What the first process raises,
    all raise.
    """
    costs = slowest(group.all_of(costs))
    if len(set(group.all_of(graph.batch))) > 1:
        return costs, group.unless_one_fails(lambda: plan(costs))

    def sent() -> Schedule:
        schedule = plan(costs)
        return replace(schedule, graph=sendable(schedule.graph))

    schedule = replace(group.from_first(sent), graph=graph)
    check(schedule)
    return costs, schedule

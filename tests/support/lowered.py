"""A plan's schedule, by its order where that fits, else at its floor."""

from tvdnn.graph import Graph
from tvdnn.planner.ir.budgets import Budgets
from tvdnn.planner.ir.costs import Costs
from tvdnn.planner.ir.plan import Plan
from tvdnn.planner.ir.schedule import Schedule
from tvdnn.planner.lowering.floor import MinimumSchedule
from tvdnn.planner.lowering.lower import lower_with_prefetch


def lower(
    graph: Graph,
    plan: Plan,
    costs: Costs,
    *,
    budget: int | None = None,
    host_budget: int | None = None,
) -> Schedule:
    """The schedule of `plan` inside `budget` device bytes and `host_budget` pinned bytes.

    Raises BudgetError with the plan's floor where it exceeds `budget`, HostMemoryError where the
    host copies exceed `host_budget`.
    """
    budgets = Budgets.of(graph, budget, host_budget)
    schedule = lower_with_prefetch(graph, plan, costs, budgets)
    return schedule or MinimumSchedule.of(graph, plan, costs).schedule(budgets)

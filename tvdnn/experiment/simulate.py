"""Simulating a request: plan, check and simulate it on a hardware profile."""

from dataclasses import dataclass

from ..planner.ir.costs import Costs
from ..planner.ir.schedule import Schedule
from ..planner.ir.timeline import Timeline
from ..planner.make import make_schedule
from ..planner.timing.simulate import simulate
from ..report.rows import Floor, Row, simulated_row
from ..units import Limit
from .progress import StageReport
from .request import (
    REFUSALS,
    Request,
    budget_nbytes,
    chosen,
    find_bound,
    find_floor,
    make_case,
    make_graph,
    refused_row,
    software,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A row, and what it was made from; None where the policy is infeasible.

    `predicted_by` are the costs that a measured step was predicted by.
    """

    row: Row
    schedule: Schedule | None = None
    timeline: Timeline | None = None
    predicted_by: Costs | None = None


def simulated(
    request: Request,
    costs: Costs,
    policy: str,
    limit: Limit,
    report: StageReport,
    floor: Floor | None = None,
) -> Outcome:
    """One policy inside one budget, on the machine that `costs` describe.

    The policy's floor is looked for unless it is given.
    """
    graph = make_graph(request, policy, report, limit)
    budget = budget_nbytes(limit, graph, costs, policy)
    case = make_case(request, policy, budget, costs.hardware, software())
    try:
        schedule = make_schedule(
            graph,
            costs,
            policy=policy,
            budget=budget,
            host_budget=request.host_budget,
            lead=chosen(request, policy, limit).lead,
            progress=report,
        )
    except REFUSALS as error:
        return Outcome(refused_row(case, graph, error, simulated=True))
    timeline = simulate(schedule, costs)
    floor = floor or find_floor(graph, costs, policy)
    bound_s = find_bound(graph, costs, case, request.host_budget)
    row = simulated_row(case, schedule, timeline, floor, bound_s=bound_s)
    return Outcome(row, schedule, timeline)

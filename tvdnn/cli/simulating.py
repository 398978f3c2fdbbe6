"""Simulating a request: plan, check and simulate it on a hardware profile."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import BudgetError
from ..graph import Graph
from ..planner.costs import Costs
from ..planner.planning import make_schedule
from ..planner.schedule import Schedule
from ..planner.simulate import simulate
from ..planner.timeline import Timeline
from ..report.rows import Floor, Row, infeasible_row, simulated_row
from .output import StageReport
from .request import Request, find_floor, make_case, software


@dataclass(frozen=True, slots=True)
class Simulated:
    """A row, and what it was made from; None where the policy is infeasible."""

    row: Row
    floor: Floor
    schedule: Schedule | None = None
    timeline: Timeline | None = None


def simulated(
    request: Request,
    graph: Graph,
    costs: Costs,
    policy: str,
    budget: int | None,
    report: StageReport,
) -> Simulated:
    """One policy inside one budget, on the machine that `costs` describe."""
    case = make_case(request, policy, budget, costs.hardware, software())
    try:
        schedule = make_schedule(
            graph,
            costs,
            policy=policy,
            budget=budget,
            host_budget=request.host_budget,
            progress=report,
        )
    except BudgetError as error:
        floor = Floor(error.floor_nbytes, error.step)
        baseline = graph.baseline_nbytes
        return Simulated(
            infeasible_row(case, floor, baseline_nbytes=baseline, simulated=True), floor
        )
    timeline = simulate(schedule, costs)
    floor = find_floor(graph, costs, policy)
    row = simulated_row(case, schedule, timeline, floor)
    return Simulated(row, floor, schedule, timeline)


def simulated_rows(
    request: Request,
    graph: Graph,
    costs: Costs,
    cases: Sequence[tuple[str, int | None]],
    report: StageReport,
) -> list[Row]:
    """A row for each policy and budget."""
    return [
        simulated(request, graph, costs, policy, budget, report).row for policy, budget in cases
    ]

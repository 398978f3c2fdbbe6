"""Simulating a request: plan, check and simulate it on a hardware profile."""

from dataclasses import dataclass

from ..planner.ir.costs import Costs
from ..planner.ir.schedule import Schedule
from ..planner.ir.timeline import Timeline
from ..planner.make import Problem
from ..planner.timing.simulate import simulate
from ..report.rows import Floor, Row, simulated_row
from ..units import Limit
from .progress import StageReport
from .request import (
    REFUSALS,
    Request,
    chosen,
    find_bound,
    find_floor,
    make_case,
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
    problem: Problem,
    policy: str,
    limit: Limit,
    report: StageReport,
    *,
    floor: Floor | None = None,
    memory_nbytes: int | None = None,
) -> Outcome:
    """One policy inside one budget, on the machine that the problem's costs describe.

    The policy's floor is looked for unless it is given. Without a budget, a plan that takes more
    than the machine's `memory_nbytes` is made anew inside these.
    """
    problem, costs = problem.within(limit), problem.costs
    report("tracing", 0.0)
    problem.graph(policy)
    report("tracing", 1.0)
    case = make_case(request, policy, problem.budget_nbytes(policy), costs.hardware, software())
    lead = chosen(request, policy, limit).lead
    try:
        schedule = problem.schedule(policy, lead=lead, progress=report)
    except REFUSALS as error:
        return Outcome(refused_row(case, problem, error, simulated=True))
    if limit is None and memory_nbytes is not None and schedule.peak_nbytes > memory_nbytes:
        return simulated(request, problem, policy, memory_nbytes, report, floor=floor)
    timeline = simulate(schedule, costs)
    floor, bound_s = floor or find_floor(problem, policy), find_bound(problem, policy)
    row = simulated_row(case, schedule, timeline, floor, bound_s=bound_s)
    return Outcome(row, schedule, timeline)

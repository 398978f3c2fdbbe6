"""Simulating a request: plan, check and simulate it on a hardware profile."""

from dataclasses import dataclass

from ..graph import Collective
from ..planner.ir.costs import RANKS, Costs
from ..planner.ir.schedule import Lane, Schedule, Step
from ..planner.ir.timeline import Timeline
from ..planner.make import Problem
from ..planner.timing.calibrate import CalibratedCosts
from ..planner.timing.simulate import simulate
from ..report.rows import Floor, Row, simulated_row
from ..units import Limit, format_bytes, format_seconds
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


@dataclass(frozen=True, slots=True)
class Summing:
    """Sums of gradients over processes in a simulated step: their bytes, and seconds.

    `exposed_s` are the seconds by which the step is shorter where sums take no time. What is
    gathered of parameters behind them takes part of the seconds, and none of the bytes.
    """

    world: int
    summed_bytes: int
    summing_s: float
    exposed_s: float
    samples_per_s: float  # of all processes

    @property
    def text(self) -> str:
        """The same in a sentence."""
        return (
            f"Simulated: {self.world} processes sum {format_bytes(self.summed_bytes)} a step, in"
            f" {format_seconds(self.summing_s)} of which {format_seconds(self.exposed_s)} are"
            f" exposed, and train {self.samples_per_s:,.0f} samples a second."
        )


def summing_of(found: Outcome, costs: Costs, request: Request) -> Summing | None:
    """What sums over processes take of a step; None where it has none, or does not fit."""
    if found.schedule is None or found.timeline is None or request.world == 1:
        return None
    sums = [step for step in found.schedule.steps if step.lane is Lane.REDUCE]
    passes = found.schedule.graph.passes

    def sums_up(step: Step) -> bool:
        return passes[step.pass_index].collective is not Collective.ALL_GATHER

    spans = [span for span in found.timeline.spans if span.lane is Lane.REDUCE]
    free = {tier: link for tier, link in costs.links.items() if tier != RANKS}
    alone_s = simulate(found.schedule, CalibratedCosts(costs, {}, free)).step_s
    step_s = found.timeline.step_s
    return Summing(
        world=request.world,
        summed_bytes=sum(step.writes[0].nbytes for step in sums if sums_up(step)),
        summing_s=sum(span.end_s - span.start_s for span in spans),
        exposed_s=step_s - alone_s,
        samples_per_s=request.world * request.batch / step_s,
    )


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

"""Sweeping a request over budgets: the frontier of step time over memory, policy by policy."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ..errors import InputError
from ..planner.ir.costs import Costs
from ..report.rows import Floor, Row
from .processes import Processes
from .progress import StageReport
from .request import Request, find_floor, make_problem
from .simulate_request import simulated


def swept_rows(
    request: Request,
    costs: Costs,
    policies: Sequence[str],
    count: int,
    report: StageReport,
    processes: Processes,
    *,
    memory_nbytes: int | None = None,
) -> list[Row]:
    """A row for each policy and each of `count` budgets, the least first, planned by processes.

    Budgets go evenly from the least of the policies' floors to what keeping everything takes, or to
    the machine's `memory_nbytes` where that is less. A
    schedule that fits less memory fits more as well: where it is faster than what is found there it
    takes that place, so that no policy's time grows with its budget.
    """
    if count < 2:
        raise InputError(f"a sweep over {count} budgets has no two ends; ask for 2 or more")
    report("tracing", 0.0)
    problem = make_problem(request, costs)
    report("tracing", 1.0)
    floors = {policy: find_floor(problem.within("min"), policy) for policy in policies}
    kept = problem.schedule("keep").peak_nbytes
    most = kept if memory_nbytes is None else min(kept, memory_nbytes)
    least = [floor.nbytes for floor in floors.values()]
    budgets = np.ceil(np.linspace(min(least), max(most, *least), count)).astype(int).tolist()
    cases = [(policy, budget) for policy in floors for budget in budgets]
    jobs = [partial(_row, request, costs, *case, floors[case[0]]) for case in cases]
    made = processes.each(jobs, partial(report, "planning"))
    rows = {cases[number]: row for number, row in made}
    found = ([rows[policy, budget] for budget in budgets] for policy in floors)
    return [row for each in found for row in _frontier(each)]


def _row(request: Request, costs: Costs, policy: str, budget: int, floor: Floor) -> Row:
    problem = make_problem(request, costs)
    return simulated(request, problem, policy, budget, lambda *_: None, floor=floor).row


def _frontier(rows: Sequence[Row]) -> Iterator[Row]:
    """The rows of a policy, each of the fastest schedule that fits its budget."""
    best: Row | None = None
    for row in rows:
        if best is None or row.infeasible or (row.predicted_s or 0) <= (best.predicted_s or 0):
            best = None if row.infeasible else row
            yield row
        else:
            best = replace(best, budget_bytes=row.budget_bytes, bound_s=row.bound_s)
            yield best

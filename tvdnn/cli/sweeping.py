"""Sweeping a request over budgets: the frontier of step time over memory, policy by policy."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ..errors import InputError
from ..planner.costs import Costs
from ..planner.planning import make_schedule
from ..report.rows import Floor, Row
from .output import StageReport
from .request import Request, find_floor, make_graph
from .simulating import simulated


def swept_rows(
    request: Request, costs: Costs, policies: Sequence[str], count: int, report: StageReport
) -> list[Row]:
    """A row for each policy and each of `count` budgets, the least first.

    Budgets go evenly from the least of the policies' floors to what keeping everything takes. A
    schedule that fits less memory fits more as well: where it is faster than what is found there it
    takes that place, so that no policy's time grows with its budget.
    """
    if count < 2:
        raise InputError(f"a sweep over {count} budgets has no two ends; ask for 2 or more")
    floors = {
        policy: find_floor(make_graph(request, policy, report, "min"), costs, policy)
        for policy in policies
    }
    kept = make_schedule(make_graph(request, "keep", report), costs, policy="keep").peak_nbytes
    least = [floor.nbytes for floor in floors.values()]
    budgets = np.ceil(np.linspace(min(least), max(kept, *least), count)).astype(int).tolist()
    return [
        row
        for policy, floor in floors.items()
        for row in _frontier(request, costs, policy, floor, budgets, report)
    ]


def _frontier(
    request: Request,
    costs: Costs,
    policy: str,
    floor: Floor,
    budgets: Sequence[int],
    report: StageReport,
) -> Iterator[Row]:
    best: Row | None = None
    for budget in budgets:
        found = simulated(request, costs, policy, budget, report, floor).row
        if best is None or found.infeasible or (found.predicted_s or 0) <= (best.predicted_s or 0):
            best = None if found.infeasible else found
            yield found
        else:
            best = replace(best, budget_bytes=budget, bound_s=found.bound_s)
            yield best

"""Sweeping a request over budgets: the frontier of step time over memory, policy by policy."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ..errors import InputError
from ..planner.costs import Costs
from ..planner.planning import make_schedule
from ..report.rows import Row
from .output import StageReport
from .request import Request, find_floor, make_graph
from .simulating import simulated


def swept_rows(
    request: Request, costs: Costs, policies: Sequence[str], count: int, report: StageReport
) -> list[Row]:
    """A row for each policy and each of `count` budgets, the least first.

    A schedule that fits less memory fits more as well: where it is faster than what is found there
    it takes that place, so that no policy's time grows with its budget.
    """
    if count < 2:
        raise InputError(f"a sweep over {count} budgets has no two ends; ask for 2 or more")
    budgets = _budgets(request, costs, policies, count, report)
    return [
        row for policy in policies for row in _frontier(request, costs, policy, budgets, report)
    ]


def _budgets(
    request: Request, costs: Costs, policies: Sequence[str], count: int, report: StageReport
) -> list[int]:
    """Evenly from the least of the policies' floors to what keeping everything takes."""
    floors = [
        find_floor(make_graph(request, policy, report, "min"), costs, policy).nbytes
        for policy in policies
    ]
    kept = make_schedule(make_graph(request, "keep", report), costs, policy="keep").peak_nbytes
    ends = min(floors), max(kept, *floors)
    return [int(budget) for budget in np.ceil(np.linspace(*ends, count))]


def _frontier(
    request: Request, costs: Costs, policy: str, budgets: Sequence[int], report: StageReport
) -> Iterator[Row]:
    best: Row | None = None
    for budget in budgets:
        found = simulated(request, costs, policy, budget, report).row
        if best is None or found.infeasible or (found.predicted_s or 0) <= (best.predicted_s or 0):
            best = None if found.infeasible else found
            yield found
        else:
            best = replace(best, budget_bytes=budget, bound_s=found.bound_s)
            yield best

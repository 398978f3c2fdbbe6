"""auto: maps are kept, offloaded or recomputed, whichever is predicted to take least."""

from collections.abc import Iterator
from dataclasses import replace

from ..ir.plan import HOST, Plan, prefetched_nbytes
from ..ir.schedule import Schedule
from ..joint.plan import joint_schedule, leanest_plans
from ..lowering.segments import Variant
from ..lowering.timetable import schedule_within
from ..lowering.zero_copy import with_zero_copy
from ..offload.belady import plans_offloading_all
from ..problem import GraphProblem, Policy
from ..timing.simulate import simulate
from .keep import keep, keep_schedule
from .tvdnn import heuristic
from .vdnn import ALL, CONV, vdnn

AUTO = "auto"


def _schedule(problem: GraphProblem) -> Schedule | None:
    """keep's schedule where it fits, else the faster one of an exact plan and a rounded one."""
    kept = keep_schedule(problem)
    if kept is not None:
        return kept
    exact = problem.exact or _exact_schedule(problem.without_rounding())
    rounded = joint_schedule(problem, AUTO) if problem.lossy else None
    if exact is None or rounded is None or not rounded.plan.rounded:
        return exact
    seconds = [simulate(each, problem.costs).step_s for each in (exact, rounded)]
    return exact if seconds[0] <= seconds[1] else rounded


def _exact_schedule(problem: GraphProblem) -> Schedule | None:
    """The faster one of the joint planner's schedule and of vDNN's trials."""
    best = joint_schedule(problem, AUTO)
    if best is None:
        best = heuristic(problem)
        if best is None:
            return problem.first_that_fits(_leanest(problem))
        best = replace(best, plan=replace(best.plan, policy=AUTO))
    best_s = simulate(best, problem.costs).step_s
    for kinds in (CONV, ALL):
        plan = vdnn(problem.graph, kinds, name=AUTO, default=Variant.PERFORMANCE)
        other = problem.lowered(plan) if _may_take_less(problem, plan, best_s) else None
        other_s = simulate(other, problem.costs).step_s if other else best_s
        if other and other_s < best_s:
            best, best_s = other, other_s
    return straight_if_faster(problem, best, best_s) or best


def straight_if_faster(problem: GraphProblem, best: Schedule, best_s: float) -> Schedule | None:
    """The schedule with codes encoded straight to the host; None where that is not faster."""
    plan = with_zero_copy(problem.graph, best.plan, problem.costs)
    other = problem.lowered(plan) if plan else None
    if other is None:
        return None
    other_s = simulate(other, problem.costs).step_s
    if other_s >= best_s:
        return None
    report = other.plan.optimality
    return replace(
        other, plan=replace(other.plan, optimality=report and replace(report, step_s=other_s))
    )


def _may_take_less(problem: GraphProblem, plan: Plan, below_s: float) -> bool:
    """Whether the plan's order is predicted to take less than so many seconds."""
    graph, costs, arena = problem.graph, problem.costs, problem.budgets.arena
    assert arena is not None
    if prefetched_nbytes(graph, plan) / costs.links[HOST].back >= below_s:
        return False
    found = schedule_within(graph, plan, costs, arena)
    return found is not None and found.seconds < below_s


def _leanest(problem: GraphProblem) -> Iterator[Plan]:
    graph = problem.graph
    yield from leanest_plans(problem)
    yield from plans_offloading_all(graph, problem.costs, AUTO)
    for kinds in (ALL, CONV):
        yield vdnn(graph, kinds, name=AUTO, default=Variant.MEMORY)
    yield keep(graph)


POLICIES = (Policy(AUTO, _schedule, _leanest, recomputes=True, remakes_maps=True, searches=True),)

"""Plans for the profile of an H200, and the seconds of their steps there."""

from tests.support.searching import effort
from tvdnn.graph import Graph
from tvdnn.planner.ir.costs import Costs, Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.schedule import Schedule
from tvdnn.planner.make import Problem
from tvdnn.planner.timing.simulate import simulate

MOST_PROBLEMS = 4  # graphs whose problems are kept
_PROBLEMS: dict[object, tuple[Graph, Problem]] = {}


def h200(graph: Graph) -> Costs:
    return Roofline(load("H200"), graph.dtype)


def problem_of(graph: Graph) -> Problem:
    """The problem of a graph without a budget: what is found whatever the budget is found once."""
    key = id(graph), effort()
    if key not in _PROBLEMS:
        if len(_PROBLEMS) == MOST_PROBLEMS:
            del _PROBLEMS[next(iter(_PROBLEMS))]
        _PROBLEMS[key] = graph, Problem(graph, h200(graph))
    return _PROBLEMS[key][1]


def planned(
    graph: Graph, policy: str, budget: int | None = None, host_budget: int | None = None
) -> Schedule:
    return problem_of(graph).within(budget, host_budget).schedule(policy)


def step_s(schedule: Schedule) -> float:
    return simulate(schedule, h200(schedule.graph)).step_s

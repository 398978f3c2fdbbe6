"""Plans for the profile of an H200, and what their steps take there."""

from tvdnn.graph import Graph
from tvdnn.planner.costs import Costs, Roofline
from tvdnn.planner.hardware import load
from tvdnn.planner.planning import make_schedule
from tvdnn.planner.schedule import Schedule
from tvdnn.planner.simulate import simulate


def h200(graph: Graph) -> Costs:
    return Roofline(load("H200"), graph.dtype)


def planned(graph: Graph, policy: str, budget: int | None) -> Schedule:
    return make_schedule(graph, h200(graph), policy=policy, budget=budget)


def step_s(schedule: Schedule) -> float:
    return simulate(schedule, h200(schedule.graph)).step_s

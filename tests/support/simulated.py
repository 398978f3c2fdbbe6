"""Plans for the profile of an H200, and the seconds of their steps there."""

from tvdnn.graph import Graph
from tvdnn.planner.ir.costs import Costs, Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.schedule import Schedule
from tvdnn.planner.make import make_schedule
from tvdnn.planner.timing.simulate import simulate


def h200(graph: Graph) -> Costs:
    return Roofline(load("H200"), graph.dtype)


def planned(graph: Graph, policy: str, budget: int | None) -> Schedule:
    return make_schedule(graph, h200(graph), policy=policy, budget=budget)


def step_s(schedule: Schedule) -> float:
    return simulate(schedule, h200(schedule.graph)).step_s

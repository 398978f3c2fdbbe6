"""The deepest network of SuperNeurons, in float32, inside 12 GiB: planned in time, and well."""

import pytest
import torch

from tests.timing import cpu_s
from tvdnn.engine import training_graph
from tvdnn.graph import Graph
from tvdnn.models import resnet2500
from tvdnn.optim import SGD
from tvdnn.planner.costs import Roofline
from tvdnn.planner.hardware import load
from tvdnn.planner.planning import make_schedule
from tvdnn.planner.schedule import Lane, Schedule
from tvdnn.planner.simulate import simulate
from tvdnn.planner.timeline import Timeline
from tvdnn.units import GIB

COSTS = Roofline(load("H200"), "tf32")


@pytest.fixture(scope="module")
def deepest() -> Graph:
    with torch.device("meta"):
        net, x = resnet2500(), torch.empty(16, 3, 224, 224)
    return training_graph(net, x, optimizer=SGD(momentum=0.9), dtype="tf32", fuse=True)


def test_auto_plans_checks_and_simulates_it_in_twenty_seconds(deepest: Graph) -> None:
    """40 thousand steps, near what launches or copies take."""

    def plan() -> tuple[Schedule, Timeline]:
        made = make_schedule(deepest, COSTS, policy="auto", budget=12 * GIB)
        return made, simulate(made, COSTS)

    (schedule, timeline), seconds = cpu_s(plan, 20.0)
    assert schedule.peak_nbytes <= 12 * GIB
    busy_s = sum(span.end_s - span.start_s for span in timeline.spans if span.lane is Lane.COMPUTE)
    copies_s = schedule.offloaded_nbytes / min(COSTS.link.to_host, COSTS.link.to_device)
    assert timeline.step_s <= 1.25 * max(busy_s, copies_s)
    assert seconds < 20.0


def test_tvdnns_heuristic_plans_it_in_ten_seconds(deepest: Graph) -> None:
    """Near what the link alone takes."""
    schedule, seconds = cpu_s(
        lambda: make_schedule(deepest, COSTS, policy="tvdnn-heuristic", budget=12 * GIB), 10.0
    )
    assert seconds < 10.0
    assert schedule.peak_nbytes <= 12 * GIB
    copies_s = 2 * schedule.offloaded_nbytes / COSTS.link.to_host
    assert simulate(schedule, COSTS).step_s < 1.15 * copies_s

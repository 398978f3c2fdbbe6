"""early: which maps move, and its floor between those of vDNN and keep."""

from tests.support.networks import vgg
from tests.support.simulated import h200
from tvdnn.ops import Settings, expand
from tvdnn.planner.make import Problem
from tvdnn.planner.verify.check import check
from tvdnn.units import KIB


def test_the_maps_that_are_made_first_move() -> None:
    graph = expand(vgg(8, (1, 1, 1, 1, 1), image=32, classifier=64), Settings("fp32", 64 * KIB))
    problem = Problem(graph, h200(graph))
    schedule = problem.schedule("early")
    check(schedule)
    moved = [transfer.buffer for transfer in schedule.plan.transfers]
    assert moved == ["x", "conv2d0", "max_pool2d2", "conv2d3", "max_pool2d5"]
    least, floor, most = (problem.floor(name)[0] for name in ("vdnn-all:m", "early", "keep"))
    assert least < floor < most

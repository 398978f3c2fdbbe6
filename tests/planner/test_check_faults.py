"""The checker against seeded faults in schedules as the planner makes them."""

from functools import cache

import pytest

from tests.support.faults.table import FAULTS, Fault
from tests.support.networks import NetworkMaker
from tvdnn.errors import ScheduleError
from tvdnn.ops import Settings, expand
from tvdnn.ops.expand import Mode
from tvdnn.optim import SGD
from tvdnn.planner.ir.costs import Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.schedule import Schedule
from tvdnn.planner.make import make_schedule
from tvdnn.planner.verify.check import check

PLANS = (
    ("vdnn-all:m", Mode.TRAIN),
    ("vdnn-all:p", Mode.AUTOGRAD),
    ("vdnn-conv:p:sync", Mode.TRAIN),
)
SEEDS = range(2)


@cache
def lowered(policy: str, mode: Mode) -> Schedule:
    """A small chain's schedule, with offloads of every kind of section."""
    maker = NetworkMaker((4, 8, 8, 3))
    for channels in (4, 6):
        maker.conv(channels)
        maker.relu()
        maker.max_pool()
    maker.flatten()
    maker.linear(5)
    graph = expand(maker.build(), Settings("fp32", 512, mode, optimizer=SGD(momentum=0.9)))
    return make_schedule(graph, Roofline(load("H200"), "fp32"), policy=policy)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan[0]} {plan[1].value}")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_checker_refuses_the_fault(fault: Fault, plan: tuple[str, Mode]) -> None:
    schedule = lowered(*plan)
    mutants = [mutant for seed in SEEDS if (mutant := fault.seed(schedule, seed)) is not None]
    if not mutants:
        pytest.skip("no victim in this schedule")
    for mutant in mutants:
        with pytest.raises(ScheduleError):
            check(mutant)


def test_at_least_twenty_faults_find_a_victim() -> None:
    schedule = lowered(*PLANS[0])
    assert sum(fault.seed(schedule, 0) is not None for fault in FAULTS) >= 20

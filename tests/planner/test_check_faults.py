"""The checker against seeded faults in schedules as the planner makes them."""

from collections import Counter
from functools import cache
from itertools import islice
from random import Random

import pytest
import torch

from tests.networks.sign_bits import residual
from tests.support.faults.changes import implied_residencies
from tests.support.faults.harm import assert_no_harm
from tests.support.faults.table import CODE_FAULTS, CODES_HARMFUL, FAULTS, HARMFUL, Fault
from tests.support.lowered import lower
from tests.support.networks import NetworkMaker
from tests.support.plans import random_plan
from tests.support.schedules.codes import coded_schedule, joined_schedule
from tests.support.schedules.order import races
from tests.support.simulated import h200
from tvdnn.engine import training_graph
from tvdnn.errors import ScheduleError
from tvdnn.ops import Settings, expand
from tvdnn.ops.expand import Mode
from tvdnn.optim import SGD
from tvdnn.planner.ir.costs import Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.schedule import Action, Lane, Schedule
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


# Codes

BY_HAND = (coded_schedule(), joined_schedule())
MUTANTS, FEW_MUTANTS = 40, 6  # of a fault of codes: in a schedule by hand, and in a network's


@cache
def lowered_codes() -> Schedule:
    """A residual network's schedule. Its sign bits are left, encoded, and away meanwhile."""
    options = {"optimizer": SGD(), "dtype": "bf16", "chunk_size": 8192, "fuse": True}
    graph = training_graph(residual(), torch.empty(5, 3, 4, 4), **options)
    return lower(graph, random_plan(graph, Random(0)), h200(graph))


def test_schedules_have_codes_of_every_kind() -> None:
    for schedule in (*BY_HAND, lowered_codes()):
        check(schedule)
        assert not races(schedule)
        implied = implied_residencies(schedule.graph, schedule.steps)
        assert set(implied) == set(schedule.residencies)
    makers: Counter[tuple[Action, Lane]] = Counter()
    for step in lowered_codes().steps:
        makers.update((step.action, step.lane) for each in step.writes if each.form != "raw")
    assert makers == {
        (Action.LAUNCH, Lane.COMPUTE): 3,
        (Action.RECODE, Lane.COMPUTE): 4,
        (Action.COPY, Lane.OFFLOAD): 3,
        (Action.COPY, Lane.PREFETCH): 3,
    }


@pytest.mark.parametrize("fault", CODE_FAULTS, ids=lambda fault: fault.name)
def test_checker_refuses_the_fault_of_codes(fault: Fault) -> None:
    mutants = [fault.seed(schedule, seed) for schedule in BY_HAND for seed in range(10)]
    found = [mutant for mutant in mutants if mutant is not None]
    assert found
    planned = fault.seed(lowered_codes(), 0)
    for mutant in found if planned is None else (*found, planned):
        with pytest.raises(ScheduleError):
            check(mutant)


@pytest.mark.parametrize(
    "fault", [each for each in CODE_FAULTS if each.plain], ids=lambda fault: fault.name
)
def test_checker_refuses_the_plain_fault_of_codes_at_every_place(fault: Fault) -> None:
    for schedule, most in (
        (BY_HAND[0], MUTANTS),
        (BY_HAND[1], MUTANTS),
        (lowered_codes(), FEW_MUTANTS),
    ):
        for mutant in islice(fault.mutations(schedule, Random(3)), most):
            with pytest.raises(ScheduleError):
                check(mutant)


@pytest.mark.parametrize("schedule", BY_HAND, ids=("coded", "joined"))
def test_checker_accepts_no_harm_to_codes(schedule: Schedule) -> None:
    """Also those faults that know of no codes."""
    assert_no_harm(schedule, (*HARMFUL, *CODES_HARMFUL))

"""The checker against seeded faults in schedules as the planner makes them."""

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import islice
from random import Random

import pytest
import torch

from tests.networks.sign_bits import residual
from tests.support.faults import decodes
from tests.support.faults.changes import implied_residencies
from tests.support.faults.harm import assert_no_harm
from tests.support.faults.table import (
    CODE_FAULTS,
    CODES_HARMFUL,
    FAULTS,
    HARMFUL,
    TAIL_FAULTS,
    TAILS_HARMFUL,
    Fault,
    mutations_of,
)
from tests.support.lowered import lower
from tests.support.networks import NetworkMaker, random_chain
from tests.support.plans import random_plan
from tests.support.schedules.codes import coded_schedule, joined_schedule
from tests.support.schedules.order import races
from tests.support.schedules.restored import restored_schedule
from tests.support.simulated import h200
from tvdnn.engine import training_graph
from tvdnn.errors import ScheduleError
from tvdnn.graph import BITMAP, BITS, RAW, SSDC
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

BY_HAND = (coded_schedule(), joined_schedule(), restored_schedule())
MUTANTS, FEW_MUTANTS = 40, 6  # of a fault of codes: in a schedule by hand, and in a network's


@cache
def lowered_codes() -> Schedule:
    """A residual network's schedule. Its sign bits are left, encoded, and away meanwhile."""
    options = {"optimizer": SGD(), "dtype": "bf16", "chunk_size": 8192, "fuse": True}
    graph = training_graph(residual(), torch.empty(5, 3, 4, 4), **options)
    plan = random_plan(graph, Random(0))
    bridges = tuple(each for each in plan.bridges if each.form in (RAW, BITS))
    return lower(graph, replace(plan, bridges=bridges), h200(graph))


def test_schedules_have_codes_of_every_kind() -> None:
    for schedule in (*BY_HAND, lowered_codes()):
        check(schedule)
        assert not races(schedule)
        implied = implied_residencies(schedule.graph, schedule.steps)
        assert set(implied) == set(schedule.residencies)
    makers: Counter[tuple[Action, Lane]] = Counter()
    for step in lowered_codes().steps:
        makers.update((step.action, step.lane) for each in step.writes if each.form != RAW)
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
        *((schedule, MUTANTS) for schedule in BY_HAND),
        (lowered_codes(), FEW_MUTANTS),
    ):
        for mutant in islice(fault.mutations(schedule, Random(3)), most):
            with pytest.raises(ScheduleError):
                check(mutant)


@pytest.mark.parametrize("schedule", BY_HAND, ids=("coded", "joined", "restored"))
def test_checker_accepts_no_harm_to_codes(schedule: Schedule) -> None:
    """Also those faults that know of no codes."""
    assert_no_harm(schedule, (*HARMFUL, *CODES_HARMFUL))


# Packed codes

PACKED = tuple(restored_schedule(form._replace(share=60)) for form in (BITMAP, SSDC))
DECODE_FAULTS = tuple(
    Fault(mutations, plain=mutations not in CODES_HARMFUL) for mutations in mutations_of(decodes)
)


@cache
def lowered_packed() -> Schedule:
    """A chain's schedule with packed codes, some of which have tails and some are away."""
    net, x = random_chain(Random(5), 3, 8, 4), torch.empty(5, 3, 8, 8)
    graph = training_graph(net, x, dtype="tf32", chunk_size=3000)
    return lower(graph, random_plan(graph, Random(5)), h200(graph))


def test_schedules_have_packed_codes() -> None:
    for schedule in (*PACKED, lowered_packed()):
        check(schedule)
        assert not races(schedule)
        implied = implied_residencies(schedule.graph, schedule.steps)
        assert set(implied) == set(schedule.residencies)
        recodes = [each for each in schedule.steps if each.action is Action.RECODE]
        assert sum(any(operand.form.tail for operand in each.writes) for each in recodes) > 2
        assert sum(any(operand.form.tail for operand in each.reads) for each in recodes) > 2


@pytest.mark.parametrize("fault", [*TAIL_FAULTS, *DECODE_FAULTS], ids=lambda fault: fault.name)
def test_checker_refuses_the_fault_of_packed_codes(fault: Fault) -> None:
    schedules = (*PACKED, lowered_packed())
    seeds = range(6)
    mutants = [fault.seed(schedule, seed) for schedule in PACKED for seed in seeds]
    mutants.append(fault.seed(schedules[-1], 0))
    found = [mutant for mutant in mutants if mutant is not None]
    assert found or fault.mutations is decodes.values_need_not_be_as_a_code_asks
    for mutant in found:
        with pytest.raises(ScheduleError):
            check(mutant)


@pytest.mark.parametrize(
    "fault", [each for each in TAIL_FAULTS if each.plain], ids=lambda fault: fault.name
)
def test_checker_refuses_the_plain_fault_of_packed_codes_at_every_place(fault: Fault) -> None:
    for schedule, most in (*((each, MUTANTS) for each in PACKED), (lowered_packed(), FEW_MUTANTS)):
        for mutant in islice(fault.mutations(schedule, Random(3)), most):
            with pytest.raises(ScheduleError):
                check(mutant)


@pytest.mark.parametrize("schedule", PACKED, ids=("bitmap", "ssdc"))
def test_checker_accepts_no_harm_to_packed_codes(schedule: Schedule) -> None:
    assert_no_harm(schedule, (*HARMFUL, *TAILS_HARMFUL))

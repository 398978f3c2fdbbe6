"""The checker against seeded faults of tiers, in schedules as the planner makes them."""

from functools import cache, partial
from itertools import islice
from random import Random

import pytest
import torch
from torch import nn

from tests.support.faults.changes import implied_residencies, moved
from tests.support.faults.harm import assert_no_harm
from tests.support.faults.table import HARMFUL, TIER_FAULTS, TIERS_HARMFUL, Fault
from tests.support.lowered import lower
from tests.support.networks import random_chain
from tests.support.plans import random_plan
from tests.support.schedules.order import races
from tests.support.simulated import h200
from tvdnn.engine import training_graph
from tvdnn.errors import ScheduleError
from tvdnn.graph import Graph
from tvdnn.planner.ir.budgets import Budgets, TierBudgets
from tvdnn.planner.ir.plan import HOST, PEER, TIERS
from tvdnn.planner.ir.schedule import COPY_LANES, Action, Lane, Schedule
from tvdnn.planner.lowering.lower import lower_with_prefetch
from tvdnn.planner.make import make_schedule
from tvdnn.planner.offload.belady import plans_offloading_all
from tvdnn.planner.verify.check import check
from tvdnn.units import KIB

CLASSES, SEEDS, MOST = 4, range(3), 25


@cache
def drawn(seed: int) -> Schedule:
    """A chain's schedule whose sections rest in every tier."""
    net, x = random_chain(Random(seed), 3, 8, CLASSES), torch.empty(6, 3, 8, 8)
    graph = training_graph(net, x, chunk_size=3000, updates_last=True)
    return lower(graph, random_plan(graph, Random(seed), TIERS), h200(graph))


def convolutions() -> nn.Sequential:
    """A chain whose maps have three sections each."""
    layers = [nn.Conv2d(width, 8, 3, padding=1) for width in (3, 8, 8, 8)]
    parts = [each for layer in layers for each in (layer, nn.ReLU())]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(512, CLASSES))


def spilled_of(graph: Graph) -> Schedule:
    """The schedule of a policy in little host memory: bounce buffers are reused at once."""
    file = TierBudgets.with_file(None)
    costs, how = h200(graph), {"policy": "vdnn-all", "host_budget": 12 * KIB, "tiers": file}
    return make_schedule(graph, costs, **how)


@cache
def on_a_peer() -> Schedule:
    """All idle sections leave, to a peer first. What that cannot hold is on the host."""
    graph, tiers = training(updates_last=False), TierBudgets((PEER, HOST), {PEER: 12 * KIB})
    plan = next(plans_offloading_all(graph, h200(graph), "all"))
    budgets = Budgets.of(graph, None, None, tiers)
    schedule = lower_with_prefetch(graph, plan, h200(graph), budgets)
    assert schedule is not None
    return schedule


def training(*, updates_last: bool) -> Graph:
    x = torch.empty(6, 3, 8, 8)
    return training_graph(convolutions(), x, chunk_size=4 * KIB, updates_last=updates_last)


@cache
def spilled() -> Schedule:
    return spilled_of(training(updates_last=True))


SCHEDULES = (*(partial(drawn, seed) for seed in (0, 5)), spilled, on_a_peer)


def test_schedules_use_every_lane() -> None:
    used = set[Lane]()
    for make in SCHEDULES:
        schedule = make()
        check(schedule)
        assert not races(schedule)
        implied = implied_residencies(schedule.graph, schedule.steps)
        assert set(implied) == set(schedule.residencies)
        used |= {step.lane for step in schedule.steps}
    assert used >= set(COPY_LANES)


@pytest.mark.parametrize("fault", TIER_FAULTS, ids=lambda fault: fault.name)
def test_checker_refuses_the_fault_of_tiers(fault: Fault) -> None:
    schedules = [make() for make in SCHEDULES]
    of_peer = fault.name.startswith("peer")
    victims = [each for each in schedules if (each.peer_nbytes if of_peer else each.file_nbytes)]
    mutants = [fault.seed(schedule, seed) for schedule in victims for seed in SEEDS]
    found = [mutant for mutant in mutants if mutant is not None]
    assert found
    for mutant in found:
        with pytest.raises(ScheduleError):
            check(mutant)


@pytest.mark.parametrize(
    "fault", [each for each in TIER_FAULTS if each.plain], ids=lambda fault: fault.name
)
def test_checker_refuses_the_plain_fault_of_tiers_at_every_place(fault: Fault) -> None:
    schedule = drawn(0)
    for mutant in islice(fault.mutations(schedule, Random(3)), MOST):
        with pytest.raises(ScheduleError):
            check(mutant)


def test_checker_accepts_no_harm_to_tiers() -> None:
    """Also by those faults that know of no tiers."""
    assert_no_harm(drawn(0), (*TIERS_HARMFUL, *HARMFUL))


def test_an_update_ahead_of_a_copy_of_the_file_is_named() -> None:
    """All else about the schedule is right: the update needs its own gradient alone."""
    schedule = spilled()
    passes, steps = schedule.graph.passes, schedule.steps
    update = next(
        index
        for index, step in enumerate(steps)
        if step.action is Action.LAUNCH and passes[step.pass_index].changes_parameters
    )
    grads = {each.buffer for each in steps[update].reads}
    makers = [i for i in range(update) if any(each.buffer in grads for each in steps[i].writes)]
    earlier = moved(schedule, update, max(makers) + 1)
    refused = r"updates parameters before step \d+, file read .*, which may fail, has ended"
    with pytest.raises(ScheduleError, match=refused):
        check(earlier)


def test_a_plan_that_updates_too_early_is_refused() -> None:
    graph = training(updates_last=False)
    with pytest.raises(ScheduleError, match="plan a graph whose updates come last"):
        spilled_of(graph)

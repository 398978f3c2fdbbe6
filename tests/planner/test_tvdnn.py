"""tvDNN's policies: which plans they try and choose, and how near the bound these are."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.networks import pooled, vgg
from tests.support.simulated import h200, planned, step_s
from tvdnn.errors import BudgetError
from tvdnn.graph import Graph
from tvdnn.ops import Settings, expand
from tvdnn.optim import SGD
from tvdnn.planner.ir.budgets import Budgets
from tvdnn.planner.lowering.idle import IdleInterval
from tvdnn.planner.lowering.launch_limits import MemoryLimit
from tvdnn.planner.make import Problem
from tvdnn.planner.offload import swap_problem
from tvdnn.planner.offload.belady import skeletons
from tvdnn.planner.offload.fit import under_tightened_limits
from tvdnn.planner.offload.ilp import LpBound
from tvdnn.planner.offload.swap_problem import SwapProblem
from tvdnn.planner.policies import tvdnn
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.problem import GraphProblem
from tvdnn.planner.timing.step_bound import lower_bound

POLICIES = ("tvdnn-ilp", "tvdnn-heuristic")


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Two convolutions and a pooling, fused, in sections of 64 KiB."""
    settings = Settings("fp32", 64 << 10, optimizer=SGD(momentum=0.9), fuse=True)
    return expand(pooled((64, 32, 32, 3), 8), settings)


def test_a_plan_says_how_near_the_bound_its_step_is(graph: Graph) -> None:
    budget = planned(graph, "keep", None).peak_nbytes // 2
    schedule = planned(graph, "tvdnn-ilp", budget)
    least = lower_bound(graph, h200(graph), budget=budget, recompute=False)
    assert least is not None
    assert not any(slot.recompute for slot in schedule.plan.slots)
    optimality = schedule.plan.optimality
    assert optimality is not None
    assert optimality.step_s == step_s(schedule) >= least.step_s
    assert "above the bound of" in str(schedule.plan).splitlines()[1]


def test_limits_are_no_longer_tightened_once_their_step_is_slower_than_a_known_one(
    graph: Graph,
) -> None:
    budget = planned(graph, "keep", None).peak_nbytes // 2
    problem = GraphProblem(graph, h200(graph), Budgets.of(graph, budget))
    swap = SwapProblem(problem, next(skeletons(graph, h200(graph))), "tvdnn-heuristic")
    asked: list[MemoryLimit] = []

    def choose(limits: MemoryLimit) -> Sequence[IdleInterval] | None:
        asked.append(limits)
        return swap.greedy(limits)

    first, *_ = under_tightened_limits(swap, choose)
    made = [swap.trial(choose(each), each) for each in asked.copy()]
    seconds = [trial.seconds for trial in made if trial]
    known = replace(first, seconds=seconds[0])
    slower = next(number for number, each in enumerate(seconds) if each > known.seconds)
    asked.clear()
    assert under_tightened_limits(swap, choose, known) == []
    assert len(asked) == slower + 1 < len(seconds)


def test_where_few_plans_are_placed_they_are_of_the_best_skeletons(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first skeleton alone has a layer-major backward, and its step takes longer."""
    monkeypatch.setattr(swap_problem, "WORK", 700)  # three plans of it
    budget = planned(graph, "keep", None).peak_nbytes // 2
    seconds = []
    for most in (1, tvdnn.MOST_SKELETONS):
        monkeypatch.setattr(tvdnn, "MOST_SKELETONS", most)
        seconds.append([step_s(planned(graph, each, budget)) for each in POLICIES])
    (ilp_first_s, first_s), (ilp_s, heuristic_s) = seconds
    assert ilp_s < 0.95 * ilp_first_s
    assert heuristic_s < 0.95 * first_s
    assert heuristic_s < 1.05 * ilp_s


def test_of_skeletons_as_good_the_one_of_smallest_blocks_goes_first(graph: Graph) -> None:
    problem = GraphProblem(graph, h200(graph), Budgets.of(graph, graph.baseline_nbytes))
    fewest, *_, most = sorted(
        (SwapProblem(problem, each, "tvdnn-ilp") for each in skeletons(graph, h200(graph))),
        key=lambda swap: len(swap.skeleton.program.launches),
    )
    assert len(fewest.skeleton.program.launches) < len(most.skeleton.program.launches)
    for most_s, first in ((0.99, most), (1.004, most), (1.006, fewest)):
        solved = {fewest: LpBound(1.0, (), {}), most: LpBound(most_s, (), {})}
        assert tvdnn._by_promise(solved)[0] is first


@pytest.mark.parametrize("policy", POLICIES)
def test_with_memory_enough_it_keeps(graph: Graph, policy: str) -> None:
    assert planned(graph, policy, None).plan == keep(graph)


@pytest.mark.parametrize("policy", POLICIES)
def test_below_the_floor_it_tells_the_floor(policy: str) -> None:
    graph = expand(vgg(4, (1, 1, 1, 1, 1), 32, 8), Settings("fp32", 64 << 10, fuse=True))
    floor, step = Problem(graph, h200(graph)).floor(policy)
    assert planned(graph, policy, floor).peak_nbytes <= floor
    with pytest.raises(BudgetError) as raised:
        planned(graph, policy, floor - 1)
    assert (raised.value.floor_nbytes, raised.value.step) == (floor, step)

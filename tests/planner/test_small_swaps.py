"""tvDNN's policies on small networks: to keep's bits, and as fast as the best of all plans."""

import random
from math import inf

import pytest
import torch
from hypothesis import strategies as st
from torch import nn

from tests.support.drawn_chains import Drawn, random_costs
from tests.support.examples import examples
from tests.support.exhaustive import exhaustive_s, small_case
from tests.support.networks import Sum
from tvdnn.engine import training_graph
from tvdnn.engine.build import default_costs
from tvdnn.planner.make import Problem
from tvdnn.planner.offload import swap_problem
from tvdnn.planner.recompute.regions import regions
from tvdnn.planner.recompute.supplies import Supplies
from tvdnn.planner.timing.simulate import simulate

pytestmark = pytest.mark.usefixtures("units_of_one")

POLICIES = ("tvdnn-ilp", "tvdnn-heuristic")
SEEDS = (0, 1, 2, 4, 7, 20, 28, 42, 46, 48, 62)  # of networks with few plans


def test_no_choice_of_sections_is_faster() -> None:
    """The ILP's plans are within 1% of exhaustive search, the heuristic's within 5% of them."""
    for seed in SEEDS:
        case = small_case(seed)
        assert case is not None
        graph, costs, budget = case
        problem = Problem(graph, costs, budget)
        schedules = [problem.schedule(policy) for policy in POLICIES]
        assert all(schedule.peak_nbytes <= budget for schedule in schedules)
        ilp_s, heuristic_s = (simulate(schedule, costs).step_s for schedule in schedules)
        assert ilp_s <= 1.01 * exhaustive_s(graph, costs, budget) < inf
        assert heuristic_s <= 1.05 * ilp_s


@examples(
    5,
    batch=st.integers(2, 4),
    sections=st.integers(1, 3),
    share=st.floats(0, 1),
    policy=st.sampled_from(POLICIES),
    forks=st.booleans(),
)
def test_any_chain_has_the_bits_of_keep(
    seed: int, batch: int, sections: int, share: float, policy: str, forks: bool
) -> None:
    rng = random.Random(seed)
    drawn = Drawn.chain(rng, seed, (batch, 3, 8, 8), forks=forks, sections=sections, fuse=True)
    costs = random_costs(rng)
    problem, kept = Problem(drawn.graph, costs), drawn.kept(costs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(swap_problem, "WORK", 500)  # any plan will do
        floor, _ = problem.floor(policy)
        budget = floor + round(share * max(0, kept.peak_nbytes - floor))
        schedule = problem.within(budget).schedule(policy)
    assert schedule.peak_nbytes <= budget
    optimality = schedule.plan.optimality
    assert optimality is None or optimality.gap > -1e-6
    assert drawn.assert_bits(schedule, kept).touched_nbytes <= schedule.arena_nbytes


@pytest.mark.usefixtures("few_trials")
def test_branches_whose_passes_interleave_are_in_one_chain_at_most() -> None:
    """No pass runs twice: two chains would both have those backward passes."""
    upsampled = nn.Sequential(_upsampling(11), _upsampling(8), nn.BatchNorm2d(4))
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        Sum([nn.Sequential(nn.BatchNorm2d(4)), upsampled], inplace=False),
        *(nn.ReLU(), nn.Conv2d(4, 16, 3, padding=1)),
        *(nn.ReLU(), nn.Conv2d(16, 4, 3, padding=1)),
        *(nn.ReLU(), nn.Flatten(), nn.Linear(256, 4)),
    )
    graph = training_graph(net, torch.empty(4, 3, 8, 8), sections=4, fuse=True)
    costs = default_costs(graph)
    passes = [index for chain in regions(Supplies(graph), costs) for index in chain.passes]
    assert len(set(passes)) == len(passes) > 0
    for policy in ("tvdnn-heuristic", "auto"):
        Problem(graph, costs, "min").schedule(policy)


def _upsampling(size: int) -> nn.Upsample:
    return nn.Upsample(size=(size, size), mode="bilinear")

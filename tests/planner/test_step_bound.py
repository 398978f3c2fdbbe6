"""The least time of a step: no schedule beats it, and with memory enough keep is near it."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import strategies as st

from tests.support.drawn_chains import CLASSES, random_costs
from tests.support.examples import examples
from tests.support.networks import random_chain, vgg
from tvdnn.engine import training_graph
from tvdnn.graph import Direction, Graph, Kind, Pass
from tvdnn.ops import Settings, expand
from tvdnn.optim import SGD
from tvdnn.planner.ir.costs import Costs, Link, Profile, Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.plan import HOST
from tvdnn.planner.make import Problem, make_schedule
from tvdnn.planner.policies import policy_named
from tvdnn.planner.timing.simulate import simulate
from tvdnn.planner.timing.step_bound import lower_bound
from tvdnn.units import MIB

ROUNDING = 1e-6
ROOM = 256 * MIB  # half of what keep takes of `vgg16`
H200 = Roofline(load("H200"), "bf16")


@pytest.fixture(scope="module")
def vgg16() -> Graph:
    """VGG-16(64) in bfloat16, for images of 112 x 112 pixels."""
    network = vgg(64, image=112, classifier=64)
    return expand(network, Settings("bf16", 4 * MIB, optimizer=SGD(momentum=0.9)))


@examples(
    30,
    batch=st.integers(2, 9),
    chunk_size=st.integers(200, 10_000),
    share=st.floats(0, 1),
    policy=st.sampled_from(
        ("keep", "vdnn-all:m", "vdnn-conv:p", "vdnn-dyn", "superneurons:lru", "auto")
    ),
)
@pytest.mark.usefixtures("few_trials")
def test_no_policy_beats_it(
    seed: int, batch: int, chunk_size: int, share: float, policy: str
) -> None:
    rng = random.Random(seed)
    net = random_chain(rng, 3, 9, CLASSES, forks=rng.random() < 0.5)
    x = torch.empty(batch, 3, 9, 9)
    graph = training_graph(
        net, x, optimizer=SGD(momentum=0.9), chunk_size=chunk_size, fuse=policy_named(policy).fused
    )
    costs = random_costs(rng)
    problem = Problem(graph, costs)
    floor = problem.floor(policy)[0]
    roomy = max(floor, problem.schedule("keep").peak_nbytes)
    budget = floor + round(share * (roomy - floor))
    schedule = problem.within(budget).schedule(policy)
    found = lower_bound(graph, costs, budget=budget, recompute=policy_named(policy).recomputes)
    assert found is not None
    assert found.step_s <= simulate(schedule, costs).step_s * (1 + ROUNDING)


def test_enough_memory_leaves_compute_alone(vgg16: Graph) -> None:
    kept = make_schedule(vgg16, H200, policy="keep")
    for budget in (None, kept.peak_nbytes):
        found = lower_bound(vgg16, H200, budget=budget)
        assert found is not None
        assert found.offloaded_nbytes == found.recompute_s == 0.0
        assert found.step_s == found.compute_s
        assert found.step_s == pytest.approx(simulate(kept, H200).step_s, rel=0.05)


def test_a_slow_link_binds_where_nothing_is_made_again(vgg16: Graph) -> None:
    slow = with_link(H200, Link(1e9, 2e9, 1e9, 2e9, 0.0))
    found = lower_bound(vgg16, slow, budget=vgg16.fixed_nbytes + ROOM, recompute=False)
    assert found is not None
    assert found.recompute_s == 0.0
    nbytes = kept_nbytes(vgg16) - ROOM
    assert found.offloaded_nbytes == pytest.approx(nbytes)
    assert found.step_s == pytest.approx(nbytes / 1e9 + nbytes / 2e9)


def test_making_again_is_weighed_against_the_link(vgg16: Graph) -> None:
    """Over a free link all excess bytes leave. Over a useless one none do."""
    budget = vgg16.fixed_nbytes + ROOM
    swift, useless = (with_link(H200, Link(rate, rate, rate, rate, 0.0)) for rate in (1e15, 1.0))
    found = lower_bound(vgg16, swift, budget=budget)
    assert found is not None
    assert found.step_s == pytest.approx(found.compute_s)
    assert found.recompute_s == pytest.approx(0.0, abs=1e-6 * found.step_s)
    found = lower_bound(vgg16, useless, budget=budget)
    assert found is not None
    assert found.recompute_s > 0.0
    assert found.offloaded_nbytes < 1.0
    assert found.step_s == pytest.approx(found.compute_s + found.recompute_s)
    both = lower_bound(vgg16, H200, budget=budget)
    assert both is not None
    assert both.step_s < found.step_s


@pytest.mark.parametrize("recompute", [False, True])
def test_less_memory_takes_no_less_time(vgg16: Graph, recompute: bool) -> None:
    budgets = range(vgg16.fixed_nbytes, vgg16.fixed_nbytes + 2 * ROOM, ROOM // 8)
    found = [lower_bound(vgg16, H200, budget=budget, recompute=recompute) for budget in budgets]
    seconds = [each.step_s for each in found if each is not None]
    assert len(seconds) == len(budgets)
    assert all(more >= less * (1 - ROUNDING) for more, less in pairwise(seconds))
    assert seconds[0] > 1.05 * seconds[-1]


def test_a_host_without_room_leaves_making_again_or_nothing(vgg16: Graph) -> None:
    budget = vgg16.fixed_nbytes + ROOM
    found = lower_bound(vgg16, H200, budget=budget, host_budget=0)
    assert found is not None
    assert found.offloaded_nbytes == 0.0
    assert lower_bound(vgg16, H200, budget=budget, host_budget=0, recompute=False) is None


def test_a_measured_pass_takes_the_least_of_any_cut() -> None:
    link = Link(1.0, 1.0, 1.0, 1.0, 0.0)
    pass_ = Pass("p", "op", "forward", Direction.FORWARD, 12, 1, (), ())
    costs = Profile("by hand", {HOST: link}, {"p": {frozenset(): ((1, 2.0), (4, 4.0), (8, 16.0))}})
    assert costs.min_pass_s(pass_) == 12.0
    cuts = (12 / rows * costs.launch_s(pass_, rows) for rows in range(1, 13))
    assert min(cuts) == pytest.approx(12.0)


def kept_nbytes(graph: Graph) -> int:
    """Bytes of the maps that are there when backward begins and are read from then on."""
    passes = graph.passes
    turn = next(n for n, p in enumerate(passes) if p.direction is not Direction.FORWARD)
    assert all(p.direction is not Direction.FORWARD for p in passes[turn:])
    maps = {name for name, b in graph.buffers.items() if b.kind in (Kind.INPUT, Kind.MAP, Kind.AUX)}
    there = {use.buffer for p in passes[:turn] for use in p.writes} | {*graph.inputs}
    read = {use.buffer for p in passes[turn:] for use in p.reads}
    return sum(graph.buffers[name].nbytes for name in maps & there & read)


def with_link(costs: Roofline, link: Link) -> Costs:
    return replace(costs, profile=replace(costs.profile, links={HOST: link}))

"""tvDNN's policies: what they move, how fast they plan, how near the optimum, to keep's bits."""

import random
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.networks import random_chain, vgg
from tests.running import random_batches, train
from tests.test_schedules import random_costs
from tvdnn.engine import training_graph
from tvdnn.errors import BudgetError
from tvdnn.graph import Graph
from tvdnn.models import resnet2500
from tvdnn.ops import Settings, expand
from tvdnn.optim import SGD
from tvdnn.planner.check import check
from tvdnn.planner.costs import Costs, Roofline
from tvdnn.planner.hardware import load
from tvdnn.planner.lower import lower
from tvdnn.planner.planning import floor_of, make_schedule
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.schedule import Schedule
from tvdnn.planner.simulate import simulate
from tvdnn.units import GIB, MIB

CLASSES = 4
STEPS = 2
POLICIES = ("tvdnn-heuristic",)


def h200(graph: Graph) -> Costs:
    return Roofline(load("H200"), graph.dtype)


def planned(graph: Graph, policy: str, budget: int | None) -> Schedule:
    return make_schedule(graph, h200(graph), policy=policy, budget=budget)


def step_s(schedule: Schedule) -> float:
    return simulate(schedule, h200(schedule.graph)).step_s


@pytest.fixture(scope="module")
def big() -> Graph:
    """VGG-16(256) in bfloat16, its ops fused."""
    return expand(vgg(256), Settings("bf16", 16 * MIB, optimizer=SGD(momentum=0.9), fuse=True))


def test_vgg16_at_half_its_memory(big: Graph) -> None:
    """Copies bind: little leaves but the bytes that must, and the step waits for them."""
    kept = planned(big, "keep", None)
    begin = time.process_time()
    schedule = planned(big, "tvdnn-heuristic", kept.peak_nbytes // 2)
    assert time.process_time() - begin < 10.0
    assert schedule.peak_nbytes <= kept.peak_nbytes // 2
    assert not any(slot.recompute for slot in schedule.plan.slots)
    least = kept.peak_nbytes // 2
    assert 0.98 * least < schedule.offloaded_nbytes < 1.1 * least
    assert step_s(schedule) < 0.125


@pytest.mark.parametrize("policy", POLICIES)
def test_with_memory_enough_it_keeps(big: Graph, policy: str) -> None:
    assert planned(big, policy, None).plan == keep(big)


@pytest.mark.usefixtures("units_of_one")
@settings(max_examples=20, derandomize=True, deadline=None, database=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    batch=st.integers(2, 9),
    chunk_size=st.integers(1000, 20_000),
    share=st.floats(0, 1),
    policy=st.sampled_from(POLICIES),
    forks=st.booleans(),
)
def test_any_chain_has_the_bits_of_keep(
    seed: int, batch: int, chunk_size: int, share: float, policy: str, forks: bool
) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    net = random_chain(rng, 3, 8, CLASSES, forks=forks)
    batches = random_batches(STEPS, (batch, 3, 8, 8), CLASSES, seed)
    graph = training_graph(
        net, batches[0][0], optimizer=SGD(momentum=0.9), chunk_size=chunk_size, fuse=True
    )
    costs = random_costs(rng)
    floor, _ = floor_of(graph, costs, policy)
    kept = lower(graph, keep(graph), costs)
    budget = floor + round(share * max(0, kept.peak_nbytes - floor))
    schedule = make_schedule(graph, costs, policy=policy, budget=budget)
    check(schedule)
    assert schedule.peak_nbytes <= budget
    result = train(net, schedule, batches, order_seed=seed)
    assert result.equals(train(net, kept, batches))
    assert result.touched_nbytes <= schedule.arena_nbytes


@pytest.mark.parametrize("policy", POLICIES)
def test_below_the_floor_it_tells_the_floor(policy: str) -> None:
    graph = expand(vgg(4, (1, 1, 1, 1, 1), 32, 8), Settings("fp32", 64 << 10, fuse=True))
    floor, step = floor_of(graph, h200(graph), policy)
    assert planned(graph, policy, floor).peak_nbytes <= floor
    with pytest.raises(BudgetError) as raised:
        planned(graph, policy, floor - 1)
    assert (raised.value.floor_nbytes, raised.value.step) == (floor, step)


def test_resnet2500_is_planned_in_ten_seconds() -> None:
    """SuperNeurons' deepest, of float32 maps, inside 12 GiB: near what the link alone takes."""
    with torch.device("meta"):
        net, x = resnet2500(), torch.empty(16, 3, 224, 224)
    graph = training_graph(net, x, optimizer=SGD(momentum=0.9), dtype="tf32", fuse=True)
    begin = time.process_time()
    schedule = planned(graph, "tvdnn-heuristic", 12 * GIB)
    assert time.process_time() - begin < 10.0
    assert schedule.peak_nbytes <= 12 * GIB
    link_s = 2 * schedule.offloaded_nbytes / h200(graph).link.to_host
    assert step_s(schedule) < 1.15 * link_s

"""auto: the maps that it makes again, moves and keeps; never slower than vDNN; keep's bits."""

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from tests.support.drawn_chains import Drawn, random_costs
from tests.support.examples import CHAIN, examples
from tests.support.lowered import lower
from tests.support.networks import Concat, Dense, Sum, vgg
from tests.support.running import random_batches, train
from tests.support.simulated import h200, planned, problem_of, step_s
from tvdnn import models
from tvdnn.engine import training_graph
from tvdnn.graph import Graph, Kind, Network
from tvdnn.ops import Settings, expand
from tvdnn.optim import SGD
from tvdnn.planner.ir.costs import Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.schedule import Schedule
from tvdnn.planner.joint.orders import first_order
from tvdnn.planner.lowering.segments import Variant
from tvdnn.planner.make import Problem, make_schedule
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.recompute.candidates import Candidates, find_candidates
from tvdnn.planner.recompute.regions import regions
from tvdnn.planner.recompute.skeleton import RecomputeChoice, skeleton_of
from tvdnn.planner.recompute.supplies import Supplies, Supply
from tvdnn.planner.verify.check import check
from tvdnn.units import MIB

CLASSES = 4
STEPS = 2


def in_bf16(network: Network, *, fuse: bool) -> Graph:
    return expand(network, Settings("bf16", 16 * MIB, optimizer=SGD(momentum=0.9), fuse=fuse))


def recomputed(schedule: Schedule) -> set[str]:
    """The maps that are made again."""
    passes = (schedule.graph.passes[s.pass_index] for s in schedule.plan.slots if s.recompute)
    return {use.buffer for pass_ in passes for use in pass_.writes if not use.whole}


@pytest.fixture(scope="module")
def big() -> Graph:
    """VGG-16(256) in bfloat16, its ops fused, for images of 112 x 112 pixels."""
    return in_bf16(vgg(256, image=112, classifier=64), fuse=True)


def test_chains_end_where_maps_are_narrow(big: Graph) -> None:
    found = regions(Supplies(big), h200(big))
    groups = [[0, 2], [5, 7], [10, 12, 14], [17, 19, 21]]
    ops = [list(dict.fromkeys(big.passes[i].op for i in each.forward.passes)) for each in found]
    assert ops == [[f"conv2d{n}" for n in g] for g in groups]
    assert {name for region in found for r in region.recomputes for name in r.buffers} == {
        f"relu{n}" for n in (1, 6, 11, 13, 18)
    }


def test_making_a_map_again_takes_its_convolution_and_packed_weight(big: Graph) -> None:
    supplies = Supplies(big)
    supply = supplies.of("relu13", supplies.backward_readers("relu13")[0])
    assert supply is not None
    assert [big.passes[i].name for i in supply.packs] == ["conv2d12 pack"]
    assert [big.passes[i].name for i in supply.passes] == ["conv2d12 forward"]
    assert supply.takes == {"relu11"}


@pytest.fixture(scope="module")
def tight(big: Graph) -> Schedule:
    """Half of its memory."""
    return planned(big, "auto", 750_000_000)


def test_the_first_maps_are_made_again_and_the_first_pooled_one_leaves(
    big: Graph, tight: Schedule
) -> None:
    """For 7% of the time."""
    kept = planned(big, "keep", None)
    assert tight.peak_nbytes <= 750_000_000
    assert recomputed(tight) == {"relu1", "relu6"}
    assert {move.buffer for move in tight.plan.transfers} == {"x", "max_pool2d4"}
    assert tight.offloaded_nbytes < 0.1 * kept.arena_nbytes
    assert round(kept.peak_nbytes / 1e9, 1) == 1.4
    assert step_s(tight) < 1.1 * step_s(kept)


def test_a_plan_says_what_is_made_again_and_what_leaves(tight: Schedule) -> None:
    lines = str(tight.plan).splitlines()
    assert lines[0] == "auto: 2 maps leave the device"
    assert "  x: sections 0 to 7 (idle from conv2d0 forward to conv2d0 forward again)" in lines
    assert any(line.startswith("  relu1: recomputed (0.11 ms for 392.00 MiB") for line in lines)


def test_auto_without_a_budget_keeps(big: Graph) -> None:
    assert planned(big, "auto", None).plan == keep(big)


@pytest.mark.slow
def test_more_budget_is_not_slower_and_less_than_vdnn_never() -> None:
    """Nine budgets from the floor up, on a VGG of which all runs are short."""
    graph = in_bf16(vgg(64, depths=(1, 1, 1, 1, 1), image=96), fuse=False)
    floor = problem_of(graph).floor("auto")[0]
    most = planned(graph, "keep", None).peak_nbytes
    budgets = [floor + (most - floor) * part // 8 for part in range(9)]
    seconds = [step_s(planned(graph, "auto", budget)) for budget in budgets]
    assert all(more <= 1.02 * less for less, more in pairwise(seconds))
    vdnn_floor = problem_of(graph).floor("vdnn-dyn")[0]
    assert floor <= vdnn_floor
    for budget, mine in zip(budgets, seconds, strict=True):
        if budget >= vdnn_floor:
            assert mine <= step_s(planned(graph, "vdnn-dyn", budget))


@pytest.mark.usefixtures("units_of_one")
@examples(8, **CHAIN, share=st.floats(0, 1), fuse=st.booleans())
def test_any_chain_has_the_bits_of_keep(
    seed: int, batch: int, image: int, channels: int, chunk_size: int, share: float, fuse: bool
) -> None:
    rng = random.Random(seed)
    shape = (batch, channels, image, image)
    drawn = Drawn.chain(rng, seed, shape, chunk_size=chunk_size, fuse=fuse)
    costs = random_costs(rng)
    problem, kept = Problem(drawn.graph, costs), drawn.kept(costs)
    floor, _ = problem.floor("auto")
    budget = floor + round(share * max(0, kept.peak_nbytes - floor))
    schedule = problem.within(budget).schedule("auto")
    assert schedule.peak_nbytes <= budget
    assert drawn.assert_bits(schedule, kept).touched_nbytes <= schedule.arena_nbytes


def stacked(rng: random.Random, channels: int) -> nn.Sequential:
    """Two or three stages of convolutions, ReLUs and other layers, each ended by a pooling.

    Some are normalized by the batch, or take the sum of a branch, or grow by more channels.
    """
    layers: list[nn.Module] = []
    for _ in range(rng.randint(2, 3)):
        for _ in range(rng.randint(1, 3)):
            width = 4 * rng.randint(1, 2)
            layers.append(nn.Conv2d(channels, width, 3, padding=1, bias=rng.random() < 0.7))
            layers += [nn.BatchNorm2d(width)] * (rng.random() < 0.3)
            layers += [nn.ReLU()] * (rng.random() < 0.8)
            layers += [residual(width)] * (rng.random() < 0.3)
            layers += [nn.LocalResponseNorm(3)] * (rng.random() < 0.2)
            layers += [nn.Dropout(0.3)] * (rng.random() < 0.2)
            joined = rng.random() < 0.3
            layers += [rng.choice((forked, dense))(width)] * joined
            channels = 2 * width if joined else width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 4))


def residual(channels: int) -> Sum:
    conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
    return Sum([nn.Sequential(conv, nn.BatchNorm2d(channels)), nn.Identity()], inplace=False)


def forked(channels: int) -> Concat:
    """Two normalized convolutions of one map side by side."""
    convs = (nn.Conv2d(channels, channels, 1) for _ in range(2))
    sides = [nn.Sequential(conv, nn.BatchNorm2d(channels), nn.ReLU()) for conv in convs]
    return Concat(sides, [(0, channels)] * 2)


def dense(channels: int) -> Dense:
    return Dense(channels, channels // 2, 2)


def drawn_choice(rng: random.Random, found: Candidates) -> RecomputeChoice:
    """A random choice of maps to make again, in random blocks."""
    drawn = [
        frozenset(name for r in region.recomputes if rng.random() < 0.6 for name in r.buffers)
        for region in found.regions
    ]
    plain = (None, *Variant)
    blocks = tuple(rng.choice(tuple(Variant) if names else plain) for names in drawn)
    stages = frozenset(n for n in range(len(found.stages)) if rng.random() < 0.5)
    rest = rng.choice(tuple(Variant))
    return RecomputeChoice(rest, blocks, tuple(drawn), stages=stages)


@pytest.mark.usefixtures("units_of_one")
@examples(
    14,
    batch=st.integers(2, 9),
    sections=st.integers(2, 9),
    share=st.floats(0, 1),
    fuse=st.booleans(),
)
def test_any_choice_has_the_bits_of_keep(
    seed: int, batch: int, sections: int, share: float, fuse: bool
) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    net = stacked(rng, 3)
    batches = random_batches(STEPS, (batch, 3, 12, 12), CLASSES, seed)
    graph = training_graph(
        net, batches[0][0], optimizer=SGD(momentum=0.9), sections=sections, fuse=fuse
    )
    costs = random_costs(rng)
    found = find_candidates(graph, costs)
    choice = drawn_choice(rng, found)
    kept = lower(graph, keep(graph), costs)
    skeleton, limit = skeleton_of(graph, found, choice), round(share * kept.arena_nbytes)
    plan = skeleton.plan_within(limit) or skeleton.plan_within(2 * kept.arena_nbytes)
    schedule = lower(graph, plan, costs)
    check(schedule)
    passes_of_stages = found.passes_of_stages(choice.stages)
    apart = (
        names
        for region, names in zip(found.regions, choice.recomputed, strict=True)
        if passes_of_stages.isdisjoint(region.passes)
    )
    assert recomputed(schedule) >= frozenset().union(*apart)
    result = train(net, schedule, batches, order_seed=seed)
    assert result.equals(train(net, kept, batches))


@pytest.mark.usefixtures("units_of_one", "few_trials")
def test_a_normalized_sum_trains_in_less_than_two_of_its_three_maps() -> None:
    """Maps and gradients leave between the passes over the whole batch."""
    torch.manual_seed(0)
    net = nn.Sequential(residual(8), nn.ReLU(), residual(8), nn.Flatten(), nn.Linear(8 * 64, 4))
    batches = random_batches(STEPS, (10, 8, 8, 8), CLASSES, 0)
    graph = training_graph(net, batches[0][0], optimizer=SGD(momentum=0.9), sections=10, fuse=True)
    floor, _ = Problem(graph, h200(graph)).floor("auto")
    schedule = planned(graph, "auto", floor)
    check(schedule)
    kinds = {graph.buffers[move.buffer].kind for move in schedule.plan.transfers}
    assert kinds >= {Kind.MAP, Kind.GRAD}
    maps = (buffer.nbytes for buffer in graph.buffers.values() if buffer.kind is Kind.MAP)
    assert schedule.arena_nbytes < 2 * max(maps)
    kept = planned(graph, "keep", None)
    assert train(net, schedule, batches, order_seed=0).equals(train(net, kept, batches))


class Held(nn.Module):
    """Two convolutions side by side, and with `between` a function of the first before the last."""

    def __init__(self, *, between: bool) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in range(2))
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.convs[0](x)
        parts = [first, *([functional.silu(first)] if self.between else []), self.convs[1](x)]
        y = torch.cat(parts, 1)
        return functional.avg_pool2d(y, 2) if self.between else y


@pytest.mark.parametrize("between", [False, True])
def test_concatenated_maps_are_made_again_while_the_weights_last(between: bool) -> None:
    """Backward reads the map of all when the last convolution's weight has been updated, or not."""
    channels, pixels = (24, 16) if between else (16, 64)
    features = (nn.Conv2d(3, 8, 1), Held(between=between), nn.BatchNorm2d(channels), nn.Flatten())
    net = nn.Sequential(*features, nn.Linear(channels * pixels, 4))
    graph = training_graph(net, torch.empty(4, 3, 8, 8), chunk_size=1024)
    assert "1.cat" in supplies_of(graph)
    costs = Roofline(load("H200"), graph.dtype)
    floor, _ = Problem(graph, costs).floor("auto")
    check(make_schedule(graph, costs, policy="auto", budget=floor))


def test_a_block_makes_what_its_layers_normalize_again() -> None:
    """They read channels of a map that has them all by then, or has not yet, and must last."""
    features = (nn.Conv2d(3, 8, 1), Dense(8, 4, 3), nn.BatchNorm2d(20), nn.Flatten())
    net = nn.Sequential(*features, nn.Linear(20 * 64, 4))
    graph = training_graph(net, torch.empty(4, 3, 8, 8), chunk_size=1024, fuse=True)
    assert supplies_of(graph).keys() >= {f"1.layers.{number}.1" for number in range(3)}


def test_both_halves_of_a_skip_are_made_again_from_what_lies_far_apart() -> None:
    net = models.by_name("unet", width=1 / 16)
    graph = training_graph(net, torch.empty(2, 3, 32, 32), chunk_size=1024, fuse=True)
    assert supplies_of(graph)["cat#4"].takes >= {"down.0.3", "up.2.5"}


def supplies_of(graph: Graph) -> dict[str, Supply]:
    """By map that may be absent until backward, how it is made again."""
    costs = Roofline(load("H200"), graph.dtype)
    columns = first_order(graph, costs).columns
    return {each.buffer: columns.runs[each.run].supply for each in columns.absent}

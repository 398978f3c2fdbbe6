"""SuperNeurons: its checkpoints, segments, cache and windows, worked out by hand; and its bits."""

import random

import pytest
import torch
from hypothesis import strategies as st
from torch import nn

from tests.support.drawn_chains import CLASSES, Drawn, random_costs
from tests.support.examples import CHAIN, examples
from tests.support.networks import pooled, vgg
from tests.support.simulated import h200, planned, problem_of
from tvdnn import models
from tvdnn.engine import training_graph
from tvdnn.errors import InputError
from tvdnn.graph import Direction, Graph
from tvdnn.ops import Settings, expand
from tvdnn.optim import SGD
from tvdnn.planner.ir.schedule import Action, Lane, Schedule
from tvdnn.planner.make import Problem
from tvdnn.planner.policies import POLICIES
from tvdnn.planner.recompute.checkpoints import SegmentMode, find_checkpoints
from tvdnn.planner.recompute.supplies import Supplies
from tvdnn.planner.recompute.weave import Making
from tvdnn.units import KIB, MIB

NAMES = tuple(name for name in POLICIES if name.startswith("superneurons"))
MAP = 4 * 8 * 8 * 8 * 4  # bytes: four samples of 8 x 8 pixels and 8 channels in float32
SUMS = 4 * 8 * 4  # bytes of the sums of each sample's gradient, of which its bias's is made


@pytest.fixture(scope="module")
def chain() -> Graph:
    """A long segment of four maps, a short one of one pooling, and a classifier."""
    wide = [nn.LocalResponseNorm(3), nn.MaxPool2d(3, 1, 1)]
    wide += [nn.LocalResponseNorm(3), nn.MaxPool2d(3, 1, 1)]
    first = [nn.Conv2d(3, 8, 3, padding=1), *wide, nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    rest = [nn.MaxPool2d(2), nn.Conv2d(8, 4, 3, padding=1), nn.ReLU(), nn.Flatten()]
    net = nn.Sequential(*first, *rest, nn.Linear(64, CLASSES))
    optimizer = SGD(momentum=0.9)
    return training_graph(
        net, torch.empty(4, 3, 8, 8), optimizer=optimizer, chunk_size=KIB, fuse=False
    )


@pytest.fixture(scope="module")
def deep() -> Graph:
    """A VGG for 32 x 32 with batch 16, in sections of few samples."""
    network = vgg(16, depths=(1, 1, 2, 2, 2), image=32, classifier=64)
    return expand(network, Settings("fp32", 64 * KIB, optimizer=SGD(momentum=0.9), fuse=False))


def moved(schedule: Schedule) -> set[str]:
    return {bridge.buffer for bridge in schedule.plan.transfers}


def again(schedule: Schedule) -> list[str]:
    """The passes that the plan runs again, in its order."""
    passes = schedule.graph.passes
    return [passes[slot.pass_index].name for slot in schedule.plan.slots if slot.recompute]


def begins(schedule: Schedule) -> dict[str, int]:
    """By op, the slot at which its backward begins."""
    found: dict[str, int] = {}
    for number, slot in enumerate(schedule.plan.slots):
        pass_ = schedule.graph.passes[slot.pass_index]
        if pass_.direction is Direction.BACKWARD:
            found.setdefault(pass_.op, number)
    return found


def test_convolutions_are_checkpoints_and_cheap_maps_lie_between(chain: Graph) -> None:
    found = find_checkpoints(Supplies(chain))
    assert found.offloaded == {"input", "0", "5", "8"}
    assert {segment.maps for segment in found.segments} == {
        frozenset({"1", "2", "3", "4"}),
        frozenset({"7"}),
        frozenset({"10"}),
    }


def test_a_map_behind_a_lost_convolution_is_a_checkpoint_itself() -> None:
    """Backward of an average reads nothing: it takes no convolution's output, and leaves its own.

    Linear layers' outputs stay.
    """
    first = [nn.Conv2d(3, 4, 3), nn.AvgPool2d(2), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten()]
    net = nn.Sequential(*first, nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    graph = training_graph(net, torch.empty(4, 3, 10, 10), optimizer=SGD(), fuse=False)
    assert moved(planned(graph, "superneurons", None)) == {"input", "1", "2"}


def test_cost_aware_compares_each_segment_with_the_largest_layer(chain: Graph) -> None:
    """The largest layer is convolution 5 in backward: its input and the gradients of both ends.

    The long segment holds four maps, its checkpoint, and the gradients of both ends of convolution
    5, which reads it first. The short one holds a quarter of a map and the checkpoint that it is
    pooled from, a gradient like it, and an eighth of a map, the gradient of convolution 8.
    """
    found = find_checkpoints(Supplies(chain))
    assert found.largest_layer_nbytes == 3 * MAP + SUMS
    long, short = (
        next(segment for segment in found.segments if name in segment.maps) for name in ("4", "7")
    )
    assert long.nbytes == 4 * MAP + MAP + 2 * MAP + SUMS
    assert short.nbytes == MAP // 4 + MAP + MAP // 4 + MAP // 8 + SUMS // 2
    assert [found.is_speed_centric(each) for each in (long, short)] == [False, True]
    made = found.made(SegmentMode.COSTAWARE)
    assert {made[read] for read in long.reads} == {Making.AFRESH}
    assert {made[read] for read in short.reads} == {Making.ONCE}


def test_speed_makes_a_segment_once_and_memory_for_every_layer(chain: Graph) -> None:
    """In backward convolution 5 reads map 4, pooling 4 map 3, norm 3 map 2, pooling 2 map 1."""
    layers = ("1", "2", "3", "4")
    speed, memory, aware = (
        again(planned(chain, f"superneurons{mode}", None)) for mode in (":speed", ":memory", "")
    )
    ends = ["10 forward", "7 forward"]
    once = [f"{name} forward" for name in layers]
    assert speed == [*ends, *once]
    assert memory == [*ends, *once, *once[:3], *once[:2], *once[:1]]
    assert aware == memory  # the short segments have one reader each
    assert again(planned(chain, "superneurons:costaware", None)) == aware


def test_outputs_of_convolutions_leave_once(chain: Graph) -> None:
    schedule = planned(chain, "superneurons", None)
    assert moved(schedule) == {"input", "0", "5", "8"}
    nbytes = sum(chain.buffers[name].nbytes for name in moved(schedule))
    assert schedule.offloaded_nbytes == nbytes
    names = [chain.passes[slot.pass_index].name for slot in schedule.plan.slots]
    last = {names[bridge.after] for bridge in schedule.plan.transfers}
    assert last == {"0 forward", "1 forward", "7 forward", "10 forward"}


def test_a_prefetch_comes_at_the_convolution_before_in_backward(chain: Graph) -> None:
    """Map 10 is made of checkpoint 8 before any convolution. Convolution 8 needs map 7, made of
    checkpoint 5: none began before. Convolution 5 needs checkpoint 0: convolution 8 fetches it. The
    last convolution reads the input, which convolution 5 fetches.
    """
    schedule = planned(chain, "superneurons", None)
    begun, opens = begins(schedule), {}
    for bridge in schedule.plan.transfers:
        opens[bridge.buffer] = bridge.earliest_prefetch
    boundary = begun["loss"]
    expected = {"8": boundary, "5": boundary, "0": begun["8"], "input": begun["5"]}
    assert opens == expected
    latest = -1
    for step in schedule.steps:
        if step.action is Action.LAUNCH:
            latest = step.slot
        elif step.lane is Lane.PREFETCH:
            assert latest >= opens[step.reads[0].buffer] - 1


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(":lru")])
def test_the_cache_copies_nothing_while_all_fits(deep: Graph, name: str) -> None:
    roomy = planned(deep, name, None)
    assert roomy.offloaded_nbytes == 0
    most = roomy.peak_nbytes * 11 // 10
    assert planned(deep, name, most).offloaded_nbytes == 0
    eager = planned(deep, name.removesuffix(":lru"), most)
    assert eager.offloaded_nbytes > 0


def test_the_cache_evicts_the_first_checkpoints_first(deep: Graph) -> None:
    """Backward goes from tail to head, and finds the last ones still there."""
    order = ["x", *(op.name for op in deep.network.ops if op.kind == "conv2d")]
    roomy = planned(deep, "superneurons:lru", None).peak_nbytes
    floor, _ = Problem(deep, h200(deep)).floor("superneurons:lru")
    counts = []
    for share in (0.9, 0.6, 0.3):
        left = moved(planned(deep, "superneurons:lru", floor + round(share * (roomy - floor))))
        assert left == {*order[: len(left)]}
        counts.append(len(left))
    assert 0 < counts[0] <= counts[1] <= counts[2] < len(order)


LADDERS = {
    "vgg11": (16, 64),
    "alexnet": (16, 224),
    "resnet18": (16, 64),
    "resnet50": (8, 64),
    "densenet121": (4, 64),
    "googlenet": (8, 64),
    "unet": (1, 64),
}


@pytest.mark.parametrize("net", LADDERS)
def test_each_means_lowers_the_peak(net: str) -> None:
    batch, image = LADDERS[net]
    with torch.device("meta"):
        module, x = models.by_name(net), torch.empty(batch, 3, image, image)
    graph = training_graph(module, x, optimizer=SGD(), dtype="bf16", chunk_size=MIB, fuse=False)
    problem = problem_of(graph)
    rungs = problem.ladder("superneurons")
    assert [rung.means for rung in rungs] == [
        *("none", "+ liveness", "+ offload", "+ recompute", "+ shortest launches", "+ fewest sums")
    ]
    peaks = [rung.nbytes for rung in rungs]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] == graph.baseline_nbytes > peaks[1] > peaks[2] >= peaks[4]
    assert problem.floor("superneurons")[0] == peaks[5]


def test_other_policies_have_no_ladder() -> None:
    graph = expand(pooled((4, 8, 8, 3), 4), Settings("fp32", KIB))
    with pytest.raises(InputError, match="auto has no ladder of peaks; choose one of superneurons"):
        Problem(graph, h200(graph)).ladder("auto")


@pytest.mark.usefixtures("units_of_one", "few_trials")
@examples(30, **CHAIN, forks=st.booleans(), fuse=st.booleans())
def test_every_mode_trains_to_the_bits_of_keep(
    seed: int, batch: int, image: int, channels: int, chunk_size: int, forks: bool, fuse: bool
) -> None:
    """On drawn networks, between the floor and what takes all; schedules are checked when made."""
    rng = random.Random(seed)
    shape, how = (batch, channels, image, image), {"chunk_size": chunk_size, "fuse": fuse}
    drawn, costs = Drawn.chain(rng, seed, shape, forks=forks, **how), random_costs(rng)
    name, kept, problem = rng.choice(NAMES), drawn.kept(costs), Problem(drawn.graph, costs)
    floor = problem.floor(name)[0]
    share = rng.choice((0.0, rng.random(), 1.0))
    budget = floor + round(share * max(0, kept.peak_nbytes - floor))
    schedule = problem.within(budget).schedule(name)
    assert schedule.peak_nbytes <= budget
    drawn.assert_bits(schedule, kept)

"""Plans built by hand: a block of VGG section-major, its inner maps recomputed or offloaded."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
import torch
from torch import nn

from bench import granularity
from tests.support.lowered import lower
from tests.support.running import random_batches, train
from tvdnn.engine import training_graph
from tvdnn.errors import ScheduleError
from tvdnn.graph import Graph
from tvdnn.optim import SGD
from tvdnn.planner.ir.costs import Link, Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.plan import HOST, Bridge, Plan, Segment, Slot
from tvdnn.planner.ir.schedule import Action, Lane, Schedule
from tvdnn.planner.lowering.floor import MinimumSchedule
from tvdnn.planner.lowering.idle import IdleInterval, dirty
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.verify.check import check

pytestmark = pytest.mark.usefixtures("units_of_one")

BATCH, IMAGE, CLASSES = 8, 8, 4
INNER_SECTION_NBYTES = IMAGE * IMAGE * 8 * 4  # of the maps of 8 channels inside the block
INNER = ("0", "2")  # the values that the two convolutions make; their ReLUs work in place
LINK = Link(1e6, 1e6, 5e5, 5e5, 1e-6)
COSTS = Roofline(replace(load("H200"), links={HOST: LINK}), "fp32")


@pytest.fixture(scope="module")
def net() -> nn.Sequential:
    """A block of two convolutions and a pooling, one more convolution, and a classifier."""
    torch.manual_seed(5)
    block = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    rest = [nn.MaxPool2d(2), nn.Conv2d(8, 6, 3, padding=1), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*block, *rest, nn.Linear(6 * 16, CLASSES))


@pytest.fixture(scope="module")
def graph(net: nn.Sequential) -> Graph:
    """One sample a section."""
    x = torch.empty(BATCH, 3, IMAGE, IMAGE, device="meta")
    with granularity.units_of_one():
        return training_graph(net, x, optimizer=SGD(momentum=0.9), sections=BATCH)


class Slots:
    """Slots of a graph by the names of its passes; those not named go layer-major, in order."""

    def __init__(self, graph: Graph) -> None:
        self._names = [pass_.name for pass_ in graph.passes]
        self._left = list(range(len(self._names)))

    def take(self, names: Iterable[str]) -> list[Slot]:
        found = [self._names.index(name) for name in names]
        self._left = [index for index in self._left if index not in found]
        return [Slot(index) for index in found]

    def again(self, names: Iterable[str]) -> list[Slot]:
        return [Slot(self._names.index(name), recompute=True) for name in names]

    def before(self, name: str) -> list[Segment]:
        """The passes left that come before the pass `name`, each a segment of its own."""
        end = self._names.index(name)
        taken = [index for index in self._left if index < end]
        self._left = [index for index in self._left if index >= end]
        return [Segment((Slot(index),)) for index in taken]

    def rest(self) -> list[Segment]:
        return [Segment((Slot(index),)) for index in self._left]


FORWARD = ("0 forward", "1 forward", "2 forward", "3 forward", "4 forward")
BACKWARD = (
    "4 grad_input",
    "3 grad_input",
    "2 grad_weight",
    "2 grad_bias",
    "2 grad_input",
    "1 grad_input",
    "0 grad_weight",
    "0 grad_bias",
)


def block_segments(graph: Graph, *, recompute: bool) -> tuple[Segment, ...]:
    """The first block is section-major, forward and backward. The rest is layer-major."""
    slots = Slots(graph)
    packs = [Segment((slot,)) for slot in slots.take(("0 pack", "2 pack", "2 pack_grad_input"))]
    forward = Segment(tuple(slots.take(FORWARD)), block=1)
    again = slots.again(FORWARD[:-1]) if recompute else []
    backward = Segment((*again, *slots.take(BACKWARD)), block=1)
    middle = slots.before("4 grad_input")
    return (*packs, forward, *middle, backward, *slots.rest())


def slot_of(graph: Graph, segments: Sequence[Segment], name: str) -> int:
    """The number of the slot that runs the pass `name` for the first time."""
    slots = [slot for segment in segments for slot in segment.slots]
    return next(
        number
        for number, slot in enumerate(slots)
        if graph.passes[slot.pass_index].name == name and not slot.recompute
    )


def most_resident(schedule: Schedule, names: Iterable[str]) -> int:
    """The most bytes of the buffers `names` that are resident at one step."""
    chosen = [stay for stay in schedule.residencies if stay.buffer in set(names)]
    change = [0] * (len(schedule.steps) + 1)
    for stay in chosen:
        change[stay.steps[0]] += stay.nbytes
        change[stay.steps[-1] + 1] -= stay.nbytes
    return max(accumulate(change))


def same_as_keep(net: nn.Sequential, graph: Graph, schedule: Schedule) -> None:
    """Check the schedule, run it in three orders, and compare two steps with keep's bit for bit."""
    check(schedule)
    batches = random_batches(2, (BATCH, 3, IMAGE, IMAGE), CLASSES, seed=3)
    kept = train(net, lower(graph, keep(graph), COSTS), batches)
    for seed in range(3):
        outcome = train(net, schedule, batches, order_seed=seed)
        assert outcome.equals(kept)
        assert outcome.touched_nbytes == schedule.arena_nbytes


def test_inner_maps_exist_a_section_at_a_time(net: nn.Sequential, graph: Graph) -> None:
    segments = block_segments(graph, recompute=True)
    schedule = lower(graph, Plan("hand", segments), COSTS)
    kept = lower(graph, keep(graph), COSTS)
    for name in INNER:
        assert graph.buffers[name].section_nbytes(0) == INNER_SECTION_NBYTES == 2048
        assert most_resident(kept, [name]) == BATCH * INNER_SECTION_NBYTES
        assert most_resident(schedule, [name]) == INNER_SECTION_NBYTES
    again = [step for step in schedule.steps if step.recompute]
    assert len(again) == 4 * BATCH
    assert schedule.slab_nbytes == 0
    assert (kept.arena_nbytes, schedule.arena_nbytes) == (62_984, 30_784)
    same_as_keep(net, graph, schedule)


def test_sections_leave_and_return_inside_segments(net: nn.Sequential, graph: Graph) -> None:
    segments = block_segments(graph, recompute=False)
    uses = {"0": ("2 forward", "2 grad_weight"), "2": ("4 forward", "4 grad_input")}
    ends = {
        name: (slot_of(graph, segments, leave), slot_of(graph, segments, back))
        for name, (leave, back) in uses.items()
    }
    transfers = tuple(
        Bridge(name, 0, BATCH, leave, back, earliest_prefetch=back)
        for name, (leave, back) in ends.items()
    )
    plan = Plan("hand", segments, transfers)
    floor, _ = MinimumSchedule.of(graph, plan, COSTS).floor
    leanest = lower(graph, plan, COSTS, budget=floor)
    assert leanest.arena_nbytes == floor - graph.fixed_nbytes == 27_392
    schedule = lower(graph, plan, COSTS, budget=graph.fixed_nbytes + 29_704)
    whole = 2 * BATCH * INNER_SECTION_NBYTES
    assert schedule.offloaded_nbytes == schedule.slab_nbytes == whole == 32_768
    assert most_resident(schedule, INNER) == 5 * INNER_SECTION_NBYTES
    assert schedule.arena_nbytes == 29_704
    launches = [i for i, step in enumerate(schedule.steps) if step.action is Action.LAUNCH]
    offloads = [i for i, step in enumerate(schedule.steps) if step.lane is Lane.OFFLOAD]
    forward_end = max(
        i for i in launches if graph.passes[schedule.steps[i].pass_index].name == "4 forward"
    )
    assert sum(i < forward_end for i in offloads) == 12  # of 16, while the segment runs
    same_as_keep(net, graph, schedule)


@pytest.mark.parametrize("count", [1, 5])
def test_some_sections_of_a_map_stay(net: nn.Sequential, graph: Graph, count: int) -> None:
    segments = keep(graph).segments
    leave = slot_of(graph, segments, "2 forward")
    back = slot_of(graph, segments, "2 grad_weight")
    plan = Plan("hand", segments, (Bridge("0", 2, count, leave, back, earliest_prefetch=back - 1),))
    schedule = lower(graph, plan, COSTS)
    assert schedule.offloaded_nbytes == count * INNER_SECTION_NBYTES
    stays = Counter(stay.section for stay in schedule.residencies if stay.buffer == "0")
    assert stays == {section: 1 + (2 <= section < 2 + count) for section in range(BATCH)}
    same_as_keep(net, graph, schedule)


def test_a_map_leaves_more_than_once(net: nn.Sequential, graph: Graph) -> None:
    """Between two uses in the forward half, and again until backward, without a second copy."""
    segments = keep(graph).segments
    stops = [slot_of(graph, segments, name) for name in ("0 forward", "1 forward", "2 forward")] + [
        slot_of(graph, segments, "2 grad_weight")
    ]
    transfers = tuple(
        Bridge("0", 0, BATCH, leave, back, earliest_prefetch=leave)
        for leave, back in pairwise(stops[1:])
    )
    schedule = lower(graph, Plan("hand", segments, transfers), COSTS)
    assert schedule.offloaded_nbytes == BATCH * INNER_SECTION_NBYTES
    returned = [step for step in schedule.steps if step.lane is Lane.PREFETCH]
    assert len(returned) == 2 * BATCH
    assert len([s for s in schedule.residencies if s.buffer == "0"]) == 3 * BATCH
    same_as_keep(net, graph, schedule)


def test_what_was_written_since_is_copied_again() -> None:
    """Else the host still has it."""
    times = ((1, 3, 0), (4, 6, 0), (7, 9, 6), (9, 12, 6))  # last use, return, written
    gaps = [
        IdleInterval("a", 0, 8, last, back, last, back, last, done) for last, back, done in times
    ]
    other = replace(gaps[1], section=1)
    assert set(dirty([*reversed(gaps), other])) == {gaps[0], gaps[2], other}
    assert set(dirty(gaps[2:])) == {gaps[2]}


def test_a_reader_of_a_reduction_has_no_place_in_its_segment(graph: Graph) -> None:
    """The sum of a weight gradient is whole only after its last section."""
    names = [pass_.name for pass_ in graph.passes]
    first, last = names.index("2 grad_weight"), names.index("2 update")
    slots = [Slot(index) for index in range(len(names))]
    joined = Segment((slots[first], replace(slots[last], run=1)), block=1)
    rest = [Segment((slot,)) for slot in slots if slot not in (slots[first], slots[last])]
    at = next(i for i, segment in enumerate(rest) if segment.slots[0].pass_index > first)
    plan = Plan("hand", (*rest[:at], joined, *rest[at:]))
    with pytest.raises(ScheduleError):
        check(lower(graph, plan, COSTS))


def test_a_plan_that_reads_before_it_writes_is_refused(graph: Graph) -> None:
    slots = keep(graph).slots
    backwards = Plan("hand", tuple(Segment((slot,)) for slot in reversed(slots)))
    with pytest.raises(ScheduleError, match="which nothing wrote before"):
        lower(graph, backwards, COSTS)


def test_a_map_that_leaves_too_early_is_refused(graph: Graph) -> None:
    segments = keep(graph).segments
    leave, back = (slot_of(graph, segments, name) for name in ("1 forward", "2 grad_weight"))
    plan = Plan("hand", segments, (Bridge("0", 0, BATCH, leave, back, earliest_prefetch=back),))
    with pytest.raises(ScheduleError, match="but 2 forward still uses it"):
        lower(graph, plan, COSTS)

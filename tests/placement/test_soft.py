"""Soft offsets: required lifetimes share no byte, and preferred lifetimes wait little."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.networks import vgg
from tests.support.simulated import h200, planned
from tvdnn.graph import Graph
from tvdnn.ops import Settings, expand
from tvdnn.optim import SGD
from tvdnn.placement import ALIGNMENT, AllocationGroup, BufferInterval, assign_offsets_soft
from tvdnn.placement.cuda_blocks import usable_nbytes
from tvdnn.planner.ir.budgets import Budgets
from tvdnn.planner.ir.schedule import Lane
from tvdnn.planner.offload.belady import skeletons
from tvdnn.planner.offload.soft_placement import SoftPlacement
from tvdnn.planner.offload.swap_problem import ScheduleTrial, SwapProblem
from tvdnn.planner.problem import GraphProblem
from tvdnn.planner.verify.check import check

UNIT = ALIGNMENT


def one(nbytes: int, first: int, last: int) -> AllocationGroup:
    """A group of one interval."""
    return AllocationGroup.of((BufferInterval(0, nbytes, first, last),))


@st.composite
def lives(draw: st.DrawFn) -> tuple[AllocationGroup, AllocationGroup]:
    """Up to three contiguous intervals with their preferred and their required lifetimes."""
    preferred, required, offset = [], [], 0
    for _ in range(draw(st.integers(1, 3))):
        nbytes, first = draw(st.integers(1, 3000)), draw(st.integers(0, 30))
        last = first + draw(st.integers(0, 6))
        early, late = draw(st.integers(0, 5)), draw(st.integers(0, 5))
        required.append(BufferInterval(offset, nbytes, first, last))
        preferred.append(
            BufferInterval(offset, nbytes, 10 * (first - early), 10 * (last + late) + 9)
        )
        offset += nbytes
    return AllocationGroup.of(preferred), AllocationGroup.of(required)


def overlap(one_: BufferInterval, other: BufferInterval) -> bool:
    """Whether both have one byte at one time."""
    together = one_.first <= other.last and other.first <= one_.last
    above = one_.offset >= other.offset + other.nbytes
    return together and not above and one_.offset + one_.nbytes > other.offset


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(st.lists(lives(), min_size=1, max_size=20), st.integers(1, 60))
def test_required_lifetimes_share_no_byte(
    groups: Sequence[tuple[AllocationGroup, AllocationGroup]], units: int
) -> None:
    preferred, required = zip(*groups, strict=True)
    offsets, unplaced = assign_offsets_soft(preferred, required, units * UNIT)
    intervals = [
        interval._replace(offset=offset + interval.offset)
        for index, (offset, group) in enumerate(zip(offsets, required, strict=True))
        if index not in unplaced
        for interval in group.intervals
    ]
    assert all(offset % ALIGNMENT == 0 for offset in offsets)
    assert all(
        interval.offset >= 0 and interval.offset + interval.nbytes <= units * UNIT
        for interval in intervals
    )
    for number, interval in enumerate(intervals):
        assert not any(overlap(interval, other) for other in intervals[:number])


def test_the_shortest_wait_is_taken() -> None:
    required = [one(UNIT, 0, 0), one(UNIT, 1, 1), one(UNIT, 2, 2)]
    preferred = [one(UNIT, 0, 50), one(UNIT, 10, 30), one(UNIT, 25, 60)]
    assert assign_offsets_soft(preferred, required, 3 * UNIT) == ((0, UNIT, 2 * UNIT), ())
    assert assign_offsets_soft(preferred, required, 2 * UNIT) == ((0, UNIT, UNIT), ())


def test_a_group_without_offset_evicts_others() -> None:
    """The two small groups prefer to lie apart and leave no hole for the large one at first."""
    required = [one(UNIT, 0, 1), one(UNIT, 0, 3), one(UNIT, 2, 4), one(2 * UNIT, 4, 5)]
    preferred = [one(UNIT, 0, 9), one(UNIT, 0, 3), one(UNIT, 2, 9), one(2 * UNIT, 4, 9)]
    offsets, unplaced = assign_offsets_soft(preferred, required, 3 * UNIT)
    assert not unplaced
    assert offsets[2] in (0, 2 * UNIT)


def test_a_group_above_the_capacity_is_unplaced() -> None:
    assert assign_offsets_soft([one(2 * UNIT, 0, 1)], [one(2 * UNIT, 0, 1)], UNIT)[1] == (0,)
    both = [one(UNIT, 0, 1), one(UNIT, 1, 2)]
    offsets, unplaced = assign_offsets_soft(both, both, UNIT)
    assert len(unplaced) == 1
    assert set(offsets) == {0}


def test_groups_are_placed_in_the_order_of_priority() -> None:
    groups = [one(UNIT, 0, 2), one(2 * UNIT, 1, 3), one(UNIT, 2, 3)]
    assert assign_offsets_soft(groups, groups, 4 * UNIT) == assign_offsets_soft(
        groups, groups, 4 * UNIT, (0, 1, 2)
    )
    assert assign_offsets_soft(groups, groups, 4 * UNIT, (2, 1, 0)) == ((3 * UNIT, UNIT, 0), ())


@pytest.fixture(scope="module")
def graph() -> Graph:
    """VGG-16(64) in bfloat16, its ops fused, for images of 112 x 112 pixels."""
    network = vgg(64, image=112, classifier=64)
    return expand(network, Settings("bf16", 2 << 20, optimizer=SGD(momentum=0.9), fuse=True))


def trial_of(graph: Graph, share: float) -> tuple[SwapProblem, ScheduleTrial]:
    """The greedy choice for a share of keep's peak, under limits 5% below its capacity."""
    budget = int(share * planned(graph, "keep", None).peak_nbytes)
    problem = GraphProblem(graph, h200(graph), Budgets.of(graph, budget))
    swap = SwapProblem(problem, next(skeletons(graph, problem.costs)), "tvdnn-heuristic")
    limit = int(0.95 * swap.usable)
    trial = swap.trial(swap.greedy(limit), limit)
    assert trial is not None
    return swap, trial


@pytest.mark.parametrize("share", [0.7, 0.85])
def test_in_places_steps_fit_and_wait_for_what_is_there(graph: Graph, share: float) -> None:
    """Launches come as before, copies between others."""
    swap, trial = trial_of(graph, share)
    found = swap.placed_before_ordering(trial)
    assert found is not None
    check(found.schedule)
    assert found.schedule.arena_nbytes <= usable_nbytes(swap.capacity)
    assert len(found.schedule.steps) == len(trial.steps.items)
    launches = [step for step in found.schedule.steps if step.lane is Lane.COMPUTE]
    assert [(step.slot, step.pass_index, step.start) for step in launches] == [
        (launch.slot, launch.pass_index, launch.start) for launch in trial.steps.program.launches
    ]


def test_more_tries_take_no_longer_and_at_times_less(graph: Graph) -> None:
    swap, trial = trial_of(graph, 0.7)
    placement = SoftPlacement(trial.steps, swap.costs, swap.usable)
    first, _ = placement.placed()
    seconds = [found[0].seconds for n in (1, 3, 8) if (found := placement.retried(n))]
    assert seconds[0] == first.seconds
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] < seconds[0]
    best = swap.retried(trial, 8)
    assert best is not None
    check(best.schedule)
    assert best.schedule.arena_nbytes <= usable_nbytes(swap.capacity)


def test_what_has_no_place_in_any_try_is_told(graph: Graph) -> None:
    swap, trial = trial_of(graph, 0.7)
    assert SoftPlacement(trial.steps, swap.costs, swap.capacity // 2).retried(3) is None

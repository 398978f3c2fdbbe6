"""Settling: what must be there at one time shares no byte, and what would like to waits little."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.networks import vgg
from tests.support.simulated import h200, planned
from tvdnn.graph import Graph
from tvdnn.ops import Settings, expand
from tvdnn.optim import SGD
from tvdnn.placement import ALIGNMENT, Extent, Stay, settle
from tvdnn.placement.cuda_blocks import usable_nbytes
from tvdnn.planner.ir.schedule import Lane
from tvdnn.planner.offload.problem import ScheduleTrial, SwapProblem
from tvdnn.planner.offload.skeleton import belady_choice, skeletons
from tvdnn.planner.offload.soft_placement import placed_before_ordering, retried
from tvdnn.planner.problem import GraphProblem, Limits
from tvdnn.planner.verify.check import check

UNIT = ALIGNMENT


def one(nbytes: int, first: int, last: int) -> Extent:
    """An extent of one stay."""
    return Extent.of((Stay(0, nbytes, first, last),))


@st.composite
def lives(draw: st.DrawFn) -> tuple[Extent, Extent]:
    """Up to three stays side by side, by when they would like to be there and when they must."""
    preferred, required, offset = [], [], 0
    for _ in range(draw(st.integers(1, 3))):
        nbytes, first = draw(st.integers(1, 3000)), draw(st.integers(0, 30))
        last = first + draw(st.integers(0, 6))
        early, at_latest_prefetch = draw(st.integers(0, 5)), draw(st.integers(0, 5))
        required.append(Stay(offset, nbytes, first, last))
        preferred.append(
            Stay(offset, nbytes, 10 * (first - early), 10 * (last + at_latest_prefetch) + 9)
        )
        offset += nbytes
    return Extent.of(preferred), Extent.of(required)


def meet(one_: Stay, other: Stay) -> bool:
    """Whether both have a byte at one time."""
    together = one_.first <= other.last and other.first <= one_.last
    above = one_.offset >= other.offset + other.nbytes
    return together and not above and one_.offset + one_.nbytes > other.offset


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(st.lists(lives(), min_size=1, max_size=20), st.integers(1, 60))
def test_what_must_be_there_at_one_time_shares_no_byte(
    extents: Sequence[tuple[Extent, Extent]], units: int
) -> None:
    preferred, required = zip(*extents, strict=True)
    bases, misfits = settle(preferred, required, units * UNIT)
    stays = [
        stay._replace(offset=base + stay.offset)
        for index, (base, extent) in enumerate(zip(bases, required, strict=True))
        if index not in misfits
        for stay in extent.stays
    ]
    assert all(base % ALIGNMENT == 0 for base in bases)
    assert all(stay.offset >= 0 and stay.offset + stay.nbytes <= units * UNIT for stay in stays)
    for number, stay in enumerate(stays):
        assert not any(meet(stay, other) for other in stays[:number])


def test_where_one_has_to_wait_it_is_the_shortest_wait() -> None:
    required = [one(UNIT, 0, 0), one(UNIT, 1, 1), one(UNIT, 2, 2)]
    preferred = [one(UNIT, 0, 50), one(UNIT, 10, 30), one(UNIT, 25, 60)]
    assert settle(preferred, required, 3 * UNIT) == ((0, UNIT, 2 * UNIT), ())
    assert settle(preferred, required, 2 * UNIT) == ((0, UNIT, UNIT), ())


def test_what_finds_no_place_drives_others_out() -> None:
    """The two small ones would like to lie apart, so that the large one has no hole at first."""
    required = [one(UNIT, 0, 1), one(UNIT, 0, 3), one(UNIT, 2, 4), one(2 * UNIT, 4, 5)]
    preferred = [one(UNIT, 0, 9), one(UNIT, 0, 3), one(UNIT, 2, 9), one(2 * UNIT, 4, 9)]
    bases, misfits = settle(preferred, required, 3 * UNIT)
    assert not misfits
    assert bases[2] in (0, 2 * UNIT)


def test_more_than_the_room_finds_no_place() -> None:
    assert settle([one(2 * UNIT, 0, 1)], [one(2 * UNIT, 0, 1)], UNIT)[1] == (0,)
    both = [one(UNIT, 0, 1), one(UNIT, 1, 2)]
    bases, misfits = settle(both, both, UNIT)
    assert len(misfits) == 1
    assert set(bases) == {0}


def test_extents_find_places_by_turns() -> None:
    extents = [one(UNIT, 0, 2), one(2 * UNIT, 1, 3), one(UNIT, 2, 3)]
    assert settle(extents, extents, 4 * UNIT) == settle(extents, extents, 4 * UNIT, (0, 1, 2))
    assert settle(extents, extents, 4 * UNIT, (2, 1, 0)) == ((3 * UNIT, UNIT, 0), ())


@pytest.fixture(scope="module")
def graph() -> Graph:
    """VGG-16(64) in bfloat16, its ops fused."""
    return expand(vgg(64), Settings("bf16", 4 << 20, optimizer=SGD(momentum=0.9), fuse=True))


def trial_of(graph: Graph, share: float) -> tuple[SwapProblem, ScheduleTrial]:
    """The greedy choice of a plan for a share of what keep takes, in little less than its room."""
    budget = int(share * planned(graph, "keep", None).peak_nbytes)
    swap = SwapProblem(
        GraphProblem(graph, h200(graph), Limits.of(graph, budget)), "tvdnn-heuristic"
    )
    skeleton = next(iter(skeletons(graph, swap.costs)))
    caps = (0.95 * swap.caps(skeleton)).astype(np.int64)
    trial = swap.trial(skeleton, belady_choice(skeleton.needed, skeleton.gaps(caps), caps), caps)
    assert trial is not None
    return swap, trial


@pytest.mark.parametrize("share", [0.7, 0.85])
def test_in_places_steps_fit_and_wait_for_what_is_there(graph: Graph, share: float) -> None:
    """Launches come as before, copies between others."""
    swap, trial = trial_of(graph, share)
    found = swap.placed_before_ordering(trial)
    assert found is not None
    check(found.schedule)
    assert found.schedule.arena_nbytes <= usable_nbytes(swap.room)
    assert len(found.schedule.steps) == len(trial.steps.entries)
    launches = [step for step in found.schedule.steps if step.lane is Lane.COMPUTE]
    assert [(step.slot, step.pass_index, step.start) for step in launches] == [
        (launch.slot, launch.pass_index, launch.start) for launch in trial.steps.program.launches
    ]


def test_more_tries_take_no_longer_and_at_times_less(graph: Graph) -> None:
    swap, trial = trial_of(graph, 0.7)
    room = usable_nbytes(swap.room)
    made = graph, trial.steps, swap.costs, room
    first, _ = placed_before_ordering(*made)
    seconds = [found[0].seconds for n in (1, 3, 8) if (found := retried(*made, tries=n))]
    assert seconds[0] == first.seconds
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] < seconds[0]
    best = swap.retried(trial, 8)
    assert best is not None
    check(best.schedule)
    assert best.schedule.arena_nbytes <= room


def test_what_has_no_place_in_any_try_is_told(graph: Graph) -> None:
    swap, trial = trial_of(graph, 0.7)
    assert retried(graph, trial.steps, swap.costs, swap.room // 2, tries=3) is None

"""Offset assignment: no two intervals share a byte at one time, and known packings come out."""

import random
from collections.abc import Sequence
from itertools import accumulate, permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvdnn.placement import (
    ALIGNMENT,
    AllocationGroup,
    BufferInterval,
    assign_offsets,
    first_fit_bounded,
    lower_bound_nbytes,
    occupancy,
)
from tvdnn.placement import search as placement

UNIT = ALIGNMENT


def one(nbytes: int, first: int, last: int) -> AllocationGroup:
    """A group of one interval."""
    return AllocationGroup.of((BufferInterval(0, nbytes, first, last),))


def placed(groups: Sequence[AllocationGroup]) -> list[BufferInterval]:
    """The intervals at their assigned offsets."""
    offsets, _ = assign_offsets(groups)
    return [
        BufferInterval(offset + interval.offset, interval.nbytes, interval.first, interval.last)
        for offset, group in zip(offsets, groups, strict=True)
        for interval in group.intervals
    ]


def overlap(one_: BufferInterval, other: BufferInterval) -> bool:
    """Whether both have one byte at one time."""
    together = one_.first <= other.last and other.first <= one_.last
    return (
        together
        and one_.offset < other.offset + other.nbytes
        and other.offset < one_.offset + one_.nbytes
    )


@st.composite
def groups_of(draw: st.DrawFn) -> AllocationGroup:
    """Up to four contiguous intervals, each with its own lifetime."""
    sizes = draw(st.lists(st.integers(1, 3000), min_size=1, max_size=4))
    intervals = []
    for index, nbytes in enumerate(sizes):
        first = draw(st.integers(0, 30))
        last = first + draw(st.integers(0, 12))
        intervals.append(BufferInterval(sum(sizes[:index]), nbytes, first, last))
    return AllocationGroup.of(intervals)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.lists(groups_of(), max_size=30))
def test_no_two_intervals_share_a_byte_at_one_time(groups: list[AllocationGroup]) -> None:
    offsets, high_water = assign_offsets(groups)
    intervals = placed(groups)
    for index, interval in enumerate(intervals):
        assert not any(overlap(interval, other) for other in intervals[:index])
    assert all(offset >= 0 and offset % ALIGNMENT == 0 for offset in offsets)
    assert high_water == max(
        (interval.offset + interval.nbytes for interval in intervals), default=0
    )


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.lists(groups_of(), min_size=1, max_size=30))
def test_the_mark_is_at_least_the_live_bytes(groups: list[AllocationGroup]) -> None:
    intervals = [interval for group in groups for interval in group.intervals]
    times = {interval.first for interval in intervals}
    live = max(sum(s.nbytes for s in intervals if s.first <= time <= s.last) for time in times)
    _, high_water = assign_offsets(groups)
    assert max(live, lower_bound_nbytes(groups)) <= high_water
    assert high_water <= sum(group.nbytes + ALIGNMENT for group in groups)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.lists(groups_of(), min_size=1, max_size=30), st.integers(1, 40))
def test_bounded_offsets_share_no_byte_below_the_capacity(
    groups: list[AllocationGroup], units: int
) -> None:
    """First fit and highest fit both place them."""
    offsets, unplaced = first_fit_bounded(groups, units * UNIT)
    intervals = [
        interval._replace(offset=offsets[index] + interval.offset)
        for index, group in enumerate(groups)
        if index not in unplaced
        for interval in group.intervals
    ]
    for index, interval in enumerate(intervals):
        assert 0 <= interval.offset <= units * UNIT - interval.nbytes
        assert not any(overlap(interval, other) for other in intervals[:index])
    assert all(offset % ALIGNMENT == 0 for offset in offsets)


def test_short_lived_groups_take_the_highest_fit() -> None:
    """The lowest fit would put them between long-lived groups."""
    lasting = [one(UNIT, time, 200 + time) for time in (0, 2)]
    brief = [one(UNIT, 1, 2), one(UNIT, 2, 3)]
    late = one(2 * UNIT, 4, 200)
    assert first_fit_bounded([*lasting, *brief, late], 4 * UNIT)[1] == ()


def test_no_groups_take_no_bytes() -> None:
    assert assign_offsets([]) == ((), 0)


def test_a_later_group_takes_the_same_bytes() -> None:
    assert assign_offsets([one(3 * UNIT, 0, 4), one(3 * UNIT, 5, 9)]) == ((0, 0), 3 * UNIT)


def test_times_include_both_ends() -> None:
    assert assign_offsets([one(UNIT, 0, 4), one(UNIT, 4, 9)])[1] == 2 * UNIT


def test_a_gap_is_filled_before_the_top() -> None:
    """A long interval at the top, a hole below it: the next group takes the hole."""
    groups = [one(2 * UNIT, 0, 2), one(UNIT, 0, 9), one(2 * UNIT, 3, 9)]
    offsets, high_water = assign_offsets(groups)
    assert high_water == 3 * UNIT
    assert offsets[0] == offsets[2]


def test_offsets_are_aligned_and_marks_exact() -> None:
    offsets, high_water = assign_offsets([one(1, 0, 5), one(10, 0, 5)])
    assert sorted(offsets) == [0, UNIT]
    assert high_water in (UNIT + 1, UNIT + 10)


def test_the_lower_bound_counts_bytes_that_no_other_interval_can_use() -> None:
    """The rest of a last unit, except of the uppermost interval, and units that begin in a run."""
    run = AllocationGroup.of([BufferInterval(0, 100, 0, 5), BufferInterval(100, UNIT, 0, 5)])
    assert lower_bound_nbytes([one(1, 0, 5), one(10, 0, 5)]) == UNIT + 1
    assert lower_bound_nbytes([run]) == UNIT + 100
    assert lower_bound_nbytes([run, one(7, 6, 9)]) == UNIT + 100
    assert lower_bound_nbytes([]) == 0


@settings(max_examples=50, derandomize=True, deadline=None)
@given(st.lists(groups_of(), min_size=1, max_size=5))
def test_no_order_ends_below_the_lower_bound(groups: list[AllocationGroup]) -> None:
    marks = [placement._assign_in(groups, order) for order in permutations(range(len(groups)))]
    assert lower_bound_nbytes(groups) <= min(mark for _, mark in filter(None, marks))


def test_sections_side_by_side_free_their_bytes_one_by_one() -> None:
    """A run of four sections that ends one by one frees bytes for a run that begins likewise."""
    leaving = AllocationGroup.of([BufferInterval(UNIT * i, UNIT, 0, 10 + i) for i in range(4)])
    coming = AllocationGroup.of([BufferInterval(UNIT * i, UNIT, 11 + i, 20) for i in range(4)])
    assert assign_offsets([leaving, coming]) == ((0, 0), 4 * UNIT)


def test_addresses_are_64_bit() -> None:
    huge = 3 * 2**40
    assert assign_offsets([one(huge, 0, 1), one(huge, 0, 1)])[1] == 2 * huge


def test_many_groups_are_placed_without_overlap() -> None:
    """With many groups one order is tried, and ended intervals are dropped."""
    groups = [one(1 + 37 * (i % 91), i, i + i % 17) for i in range(4000)]
    intervals = sorted(placed(groups), key=lambda interval: interval.first)
    for index, interval in enumerate(intervals):
        assert not any(overlap(interval, other) for other in intervals[max(0, index - 40) : index])
    live = max(
        sum(s.nbytes for s in intervals if s.first <= t <= s.last) for t in range(0, 4000, 50)
    )
    assert max(s.offset + s.nbytes for s in intervals) <= 2 * live


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.lists(groups_of(), min_size=1, max_size=20), st.sampled_from((0, 20)))
def test_trials_keep_intervals_apart_and_never_raise_the_mark(
    groups: list[AllocationGroup], trials: int
) -> None:
    (_, plain), (offsets, mark) = assign_offsets(groups), assign_offsets(groups, trials=trials)
    assert mark <= plain
    intervals = [
        BufferInterval(offset + interval.offset, interval.nbytes, interval.first, interval.last)
        for offset, group in zip(offsets, groups, strict=True)
        for interval in group.intervals
    ]
    for index, interval in enumerate(intervals):
        assert not any(overlap(interval, other) for other in intervals[:index])


def test_trials_fill_bytes_that_orders_leave_idle() -> None:
    """Random intervals: the orders leave a fiftieth of the bytes idle, trials leave none."""
    rng = random.Random(4)
    firsts = [rng.randrange(60) for _ in range(60)]
    groups = [one(UNIT * rng.randint(1, 40), t, t + rng.randint(1, 25)) for t in firsts]
    alive = max(sum(e.nbytes for e in groups if e.first <= t <= e.last) for t in range(90))
    marks = [assign_offsets(groups, trials=trials)[1] / alive for trials in (0, 100)]
    assert [round(mark, 2) for mark in marks] == [1.02, 1.0]


@pytest.mark.parametrize("seed", range(6))
def test_arrays_and_lists_give_the_same_offsets(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Orders and trials both do."""
    groups = drawn(seed)
    few = assign_offsets(groups, trials=10)
    monkeypatch.setattr(occupancy, "FEW_INTERVALS", 0)
    assert assign_offsets(groups, trials=10) == few


@pytest.mark.parametrize("seed", [0, 1, 2, 4, 5])
def test_trials_equal_a_fresh_assignment(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Although groups that meet no moved group in time keep their offsets."""
    groups = drawn(seed)
    found, moved = assign_offsets(groups, trials=30), []

    def anew(
        groups: list[AllocationGroup], order: list[int], found: placement.Assignment, _: int
    ) -> Any:
        moved.append(again := placement._assign_in(groups, order, found[1]))
        return again

    monkeypatch.setattr(placement, "_assign_again", anew)
    assert assign_offsets(groups, trials=30) == found
    assert any(moved)


def drawn(seed: int) -> list[AllocationGroup]:
    """Fifty groups of one to three intervals."""

    rng = random.Random(seed)
    groups = []
    for first in (rng.randrange(60) for _ in range(50)):
        sizes = [UNIT * rng.randint(1, 40) - rng.choice((0, 100)) for _ in range(rng.randint(1, 3))]
        starts = (first + rng.randint(0, 4) for _ in sizes)
        offsets = accumulate(sizes, initial=0)
        triples = zip(offsets, sizes, starts, strict=False)
        intervals = (BufferInterval(*each, at, at + rng.randint(1, 25)) for *each, at in triples)
        groups.append(AllocationGroup.of(list(intervals)))
    return groups

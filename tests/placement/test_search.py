"""Placement in the arena: no two stays share a byte at one time, and known packings come out."""

import random
from collections.abc import Sequence
from itertools import accumulate, permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvdnn.placement import ALIGNMENT, Extent, Stay, first_fit, fit, least_nbytes, place
from tvdnn.placement import search as placement

UNIT = ALIGNMENT


def one(nbytes: int, first: int, last: int) -> Extent:
    """An extent of one stay."""
    return Extent.of((Stay(0, nbytes, first, last),))


def placed(extents: Sequence[Extent]) -> list[Stay]:
    """The stays at their addresses."""
    bases, _ = place(extents)
    return [
        Stay(base + stay.offset, stay.nbytes, stay.first, stay.last)
        for base, extent in zip(bases, extents, strict=True)
        for stay in extent.stays
    ]


def share_bytes(one_: Stay, other: Stay) -> bool:
    """Whether both are there at one time with a byte in common."""
    meet = one_.first <= other.last and other.first <= one_.last
    return (
        meet
        and one_.offset < other.offset + other.nbytes
        and other.offset < one_.offset + one_.nbytes
    )


@st.composite
def extents_of(draw: st.DrawFn) -> Extent:
    """Up to four stays one behind the other, each with a time of its own."""
    sizes = draw(st.lists(st.integers(1, 3000), min_size=1, max_size=4))
    stays = []
    for index, nbytes in enumerate(sizes):
        first = draw(st.integers(0, 30))
        last = first + draw(st.integers(0, 12))
        stays.append(Stay(sum(sizes[:index]), nbytes, first, last))
    return Extent.of(stays)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.lists(extents_of(), max_size=30))
def test_no_two_stays_share_a_byte_at_one_time(extents: list[Extent]) -> None:
    bases, high_water = place(extents)
    stays = placed(extents)
    for index, stay in enumerate(stays):
        assert not any(share_bytes(stay, other) for other in stays[:index])
    assert all(base >= 0 and base % ALIGNMENT == 0 for base in bases)
    assert high_water == max((stay.offset + stay.nbytes for stay in stays), default=0)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.lists(extents_of(), min_size=1, max_size=30))
def test_the_mark_is_at_least_what_lives_at_once(extents: list[Extent]) -> None:
    stays = [stay for extent in extents for stay in extent.stays]
    times = {stay.first for stay in stays}
    live = max(sum(s.nbytes for s in stays if s.first <= time <= s.last) for time in times)
    _, high_water = place(extents)
    assert max(live, least_nbytes(extents)) <= high_water
    assert high_water <= sum(extent.nbytes + ALIGNMENT for extent in extents)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.lists(extents_of(), min_size=1, max_size=30), st.integers(1, 40))
def test_what_fits_shares_no_byte_in_the_room(extents: list[Extent], units: int) -> None:
    """Whichever end of the room it goes to."""
    bases, misfits = fit(extents, units * UNIT)
    stays = [
        stay._replace(offset=bases[index] + stay.offset)
        for index, extent in enumerate(extents)
        if index not in misfits
        for stay in extent.stays
    ]
    for index, stay in enumerate(stays):
        assert 0 <= stay.offset <= units * UNIT - stay.nbytes
        assert not any(share_bytes(stay, other) for other in stays[:index])
    assert all(base % ALIGNMENT == 0 for base in bases)


def test_what_is_brief_goes_to_the_other_end() -> None:
    """Where it would lie between what lasts."""
    lasting = [one(UNIT, time, 200 + time) for time in (0, 2)]
    brief = [one(UNIT, 1, 2), one(UNIT, 2, 3)]
    late = one(2 * UNIT, 4, 200)
    assert fit([*lasting, *brief, late], 4 * UNIT)[1] == ()


def test_nothing_takes_nothing() -> None:
    assert place([]) == ((), 0)


def test_what_follows_takes_the_same_bytes() -> None:
    assert place([one(3 * UNIT, 0, 4), one(3 * UNIT, 5, 9)]) == ((0, 0), 3 * UNIT)


def test_times_include_both_ends() -> None:
    assert place([one(UNIT, 0, 4), one(UNIT, 4, 9)])[1] == 2 * UNIT


def test_a_gap_is_filled_before_the_top() -> None:
    """A long stay at the top, a hole below it: the newcomer takes the hole."""
    extents = [one(2 * UNIT, 0, 2), one(UNIT, 0, 9), one(2 * UNIT, 3, 9)]
    bases, high_water = place(extents)
    assert high_water == 3 * UNIT
    assert bases[0] == bases[2]


def test_bases_are_aligned_and_marks_exact() -> None:
    bases, high_water = place([one(1, 0, 5), one(10, 0, 5)])
    assert sorted(bases) == [0, UNIT]
    assert high_water in (UNIT + 1, UNIT + 10)


def test_the_least_mark_counts_what_no_other_stay_can_use() -> None:
    """The rest of a last unit, but for the uppermost stay, and units that begin inside of a run."""
    run = Extent.of([Stay(0, 100, 0, 5), Stay(100, UNIT, 0, 5)])
    assert least_nbytes([one(1, 0, 5), one(10, 0, 5)]) == UNIT + 1
    assert least_nbytes([run]) == UNIT + 100
    assert least_nbytes([run, one(7, 6, 9)]) == UNIT + 100
    assert least_nbytes([]) == 0


@settings(max_examples=50, derandomize=True, deadline=None)
@given(st.lists(extents_of(), min_size=1, max_size=5))
def test_no_order_ends_below_the_least_mark(extents: list[Extent]) -> None:
    marks = [placement._place_in(extents, order) for order in permutations(range(len(extents)))]
    assert least_nbytes(extents) <= min(mark for _, mark in filter(None, marks))


def test_sections_side_by_side_free_their_bytes_one_by_one() -> None:
    """A run of four sections that ends one by one makes room for another that begins so."""
    leaving = Extent.of([Stay(UNIT * i, UNIT, 0, 10 + i) for i in range(4)])
    coming = Extent.of([Stay(UNIT * i, UNIT, 11 + i, 20) for i in range(4)])
    assert place([leaving, coming]) == ((0, 0), 4 * UNIT)


def test_addresses_are_64_bit() -> None:
    huge = 3 * 2**40
    assert place([one(huge, 0, 1), one(huge, 0, 1)])[1] == 2 * huge


def test_many_extents_are_placed_without_overlap() -> None:
    """Above the number from which one order alone is tried, and old stays are forgotten."""
    extents = [one(1 + 37 * (i % 91), i, i + i % 17) for i in range(4000)]
    stays = sorted(placed(extents), key=lambda stay: stay.first)
    for index, stay in enumerate(stays):
        assert not any(share_bytes(stay, other) for other in stays[max(0, index - 40) : index])
    live = max(sum(s.nbytes for s in stays if s.first <= t <= s.last) for t in range(0, 4000, 50))
    assert max(s.offset + s.nbytes for s in stays) <= 2 * live


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.lists(extents_of(), min_size=1, max_size=20), st.sampled_from((0, 20)))
def test_trials_keep_stays_apart_and_never_raise_the_mark(
    extents: list[Extent], trials: int
) -> None:
    (_, plain), (bases, mark) = place(extents), place(extents, trials=trials)
    assert mark <= plain
    stays = [
        Stay(base + stay.offset, stay.nbytes, stay.first, stay.last)
        for base, extent in zip(bases, extents, strict=True)
        for stay in extent.stays
    ]
    for index, stay in enumerate(stays):
        assert not any(share_bytes(stay, other) for other in stays[:index])


def test_trials_fill_what_orders_leave_open() -> None:
    """Stays drawn at random: the orders leave a fiftieth of the bytes idle, trials nothing."""
    rng = random.Random(4)
    firsts = [rng.randrange(60) for _ in range(60)]
    extents = [one(UNIT * rng.randint(1, 40), t, t + rng.randint(1, 25)) for t in firsts]
    alive = max(sum(e.nbytes for e in extents if e.first <= t <= e.last) for t in range(90))
    marks = [place(extents, trials=trials)[1] / alive for trials in (0, 100)]
    assert [round(mark, 2) for mark in marks] == [1.02, 1.0]


@pytest.mark.parametrize("seed", range(6))
def test_many_stays_go_where_few_do(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Arrays and lists of what is taken give the same bases, in orders and in trials."""
    extents = drawn(seed)
    few = place(extents, trials=10)
    monkeypatch.setattr(first_fit, "FEW_STAYS", 0)
    assert place(extents, trials=10) == few


@pytest.mark.parametrize("seed", [0, 1, 2, 4, 5])
def test_trials_place_as_if_anew(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Although what meets nothing that is elsewhere stays where it was."""
    extents = drawn(seed)
    found, moved = place(extents, trials=30), []

    def anew(extents: list[Extent], order: list[int], found: placement.Placed, _: int) -> Any:
        moved.append(again := placement._place_in(extents, order, found[1]))
        return again

    monkeypatch.setattr(placement, "_place_again", anew)
    assert place(extents, trials=30) == found
    assert any(moved)


def drawn(seed: int) -> list[Extent]:
    """Fifty extents of one to three stays."""
    rng = random.Random(seed)
    extents = []
    for first in (rng.randrange(60) for _ in range(50)):
        sizes = [UNIT * rng.randint(1, 40) - rng.choice((0, 100)) for _ in range(rng.randint(1, 3))]
        starts = (first + rng.randint(0, 4) for _ in sizes)
        offsets = accumulate(sizes, initial=0)
        triples = zip(offsets, sizes, starts, strict=False)
        stays = (Stay(*each, at, at + rng.randint(1, 25)) for *each, at in triples)
        extents.append(Extent.of(list(stays)))
    return extents

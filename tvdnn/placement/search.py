"""Offset assignment: an offset for every group; no two live intervals share a byte.

Groups are placed one after the other by first fit. The high-water mark depends on their order.
Several orders are tried, and the best is improved where it is highest.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

from .intervals import (
    AllocationGroup,
    lower_bound_nbytes,
    max_live_nbytes,
    order_by_start,
    peak_live_nbytes,
)
from .occupancy import Occupancy
from .sweep_first_fit import SweepFirstFit

# High-water mark, in live bytes, that is low enough where no target and no trials are given.
CLOSE_ENOUGH = 1.01
# Groups up to which four orders are tried.
FOUR_ORDERS = 3000
# Groups up to which two orders are tried if there are trials.
TWO_ORDERS = 12_000

Assignment: TypeAlias = tuple[tuple[int, ...], int]  # offset of each group, high-water mark


def assign_offsets(
    groups: Sequence[AllocationGroup],
    target: int | None = None,
    trials: int = 0,
) -> Assignment:
    """Offsets (multiples of 512 bytes) in the order of `groups`, and the high-water mark in bytes.

    Orders are tried until the mark is at most `target` bytes. The default target is the lower bound
    if there are trials, else 1% above the most live bytes. Then up to `trials` times a group that
    reaches the mark is placed earlier. If more than `target` bytes are live at once, one order is
    tried.
    """
    live = max_live_nbytes(groups)
    if target is None:
        target = max(live, lower_bound_nbytes(groups)) if trials else round(CLOSE_ENOUGH * live)
    best: Sequence[int] = ()
    found: Assignment = ((), 0)
    for order in _orders(groups, thorough=trials > 0):
        assigned = _assign_in(groups, order, found[1] - 1 if best else None)
        if assigned is not None:
            best, found = order, assigned
        if found[1] <= target or target < live:
            return found
    return _improved(groups, best, found, target, trials)


def restart_randomly(
    groups: Sequence[AllocationGroup], found: Assignment, trials: int
) -> Assignment:
    """`found`, or a lower mark of a random order; stops after `trials` orders without gain."""
    rng, order = random.Random(len(groups)), [*range(len(groups))]
    bound, left = lower_bound_nbytes(groups) if trials else 0, trials
    while left and found[1] > bound:
        rng.shuffle(order)
        lower = _assign_in(groups, order, found[1] - 1)
        found, left = (lower, trials) if lower else (found, left - 1)
    return found


def _orders(groups: Sequence[AllocationGroup], *, thorough: bool) -> Iterator[Sequence[int]]:
    """Orders that pack well: by start, by peak live bytes, by size.

    Above a number of groups, which is larger if `thorough`, only the order by start is fast enough.
    Of thirty schedules of VGG-16, (peak, start) gave the lowest mark for seventeen.
    """
    numbers = range(len(groups))
    yield order_by_start(groups)
    if len(groups) > (TWO_ORDERS if thorough else FOUR_ORDERS):
        return
    peak = peak_live_nbytes(groups)
    yield sorted(numbers, key=lambda i: (-peak[i], groups[i].first))
    if len(groups) <= FOUR_ORDERS:
        yield sorted(numbers, key=lambda i: (-peak[i], -groups[i].nbytes))
        yield sorted(numbers, key=lambda i: (-groups[i].nbytes, groups[i].first))


def _improved(
    groups: Sequence[AllocationGroup],
    order: Sequence[int],
    found: Assignment,
    target: int,
    trials: int,
) -> Assignment:
    """`found`, or a lower mark: a group at the mark is placed before one that it meets in time."""
    rng = random.Random(len(groups))
    for _ in range(trials):
        offsets, mark = found
        if mark <= target:
            break
        top = next(i for i in order if offsets[i] + groups[i].nbytes == mark)
        at = order.index(top)
        met = [place for place in range(at) if _overlap(groups[order[place]], groups[top])]
        if not met:
            break
        ahead = met[0] if rng.random() < 0.5 else rng.choice(met)
        trial = (*order[:ahead], top, *order[ahead:at], *order[at + 1 :])
        assigned = _assign_again(groups, trial, found, ahead)
        if assigned is not None:
            order, found = trial, assigned
    return found


def _overlap(one: AllocationGroup, other: AllocationGroup) -> bool:
    return one.first <= other.last and other.first <= one.last


def _assign_in(
    groups: Sequence[AllocationGroup], order: Sequence[int], limit: int | None = None
) -> Assignment | None:
    """Offsets and mark of the groups placed in `order`; None where the mark passes `limit`."""
    offsets = [0] * len(groups)
    by_start = all(groups[a].first <= groups[b].first for a, b in pairwise(order))
    occupancy = (SweepFirstFit if by_start else Occupancy)(sum(len(g.intervals) for g in groups))
    for index in order:
        group = groups[index]
        offsets[index] = occupancy.fit(group)
        occupancy.add(group, offsets[index])
        if limit is not None and occupancy.high_water > limit:
            return None
    return tuple(offsets), occupancy.high_water


def _assign_again(
    groups: Sequence[AllocationGroup], order: Sequence[int], found: Assignment, ahead: int
) -> Assignment | None:
    """`_assign_in` of `order`, which differs from that of `found` in the group moved to `ahead`.

    None where the mark passes that of `found`. A group keeps its offset unless a group placed
    before it, live at one time with it, has another offset than in `found`. A kept offset may be
    higher than that of first fit: the sweep uses no holes between the intervals of one group.
    """
    offsets, limit = list(found[0]), found[1]
    moved = bytearray(1 + max(group.last for group in groups))  # by time, 1 where a group moved
    occupancy = Occupancy(sum(len(each.intervals) for each in groups))
    for place, index in enumerate(order):
        group = groups[index]
        span = slice(group.first, group.last + 1)
        if place == ahead or 1 in moved[span]:
            offset = occupancy.fit(group)
            if place == ahead or offset != offsets[index]:
                moved[span] = b"\1" * (group.last + 1 - group.first)
            offsets[index] = offset
        occupancy.add(group, offsets[index])
        if occupancy.high_water > limit:
            return None
    return tuple(offsets), occupancy.high_water

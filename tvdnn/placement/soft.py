"""Soft offset assignment: intervals have a preferred lifetime beside the required one.

Intervals never share a byte during their required lifetimes. Where preferred lifetimes share a
byte, one interval waits for the other.
"""

from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from .intervals import ALIGNMENT, AllocationGroup, Array, align_each, columns_of, peak_live_nbytes
from .offsets import lowest_free_of

# Evictions of one group after which it stays unplaced.
MOST_EVICTIONS = 8
# Evictions of all groups after which an evicted group stays unplaced.
MOST_EVICTIONS_OF_ALL = 2000
# Intervals up to which the waits of all for each other are kept, in at most 8 MiB.
FEW_INTERVALS = 1024
# A wait longer than all others, in preferred time: required lifetimes overlap.
FORBIDDEN = 1 << 58
# Factor on the weight in bytes of a group that has evicted others.
EVICTOR_WEIGHT = 4.0

Amounts: TypeAlias = npt.NDArray[np.float64]


def assign_offsets_soft(
    preferred: Sequence[AllocationGroup],
    required: Sequence[AllocationGroup],
    capacity: int,
    priority: Sequence[int] | None = None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Offsets below `capacity` bytes (multiples of 512), and the numbers of unplaced groups.

    `preferred` and `required` are the same groups with the lifetimes that they would like and those
    that they must have, on two clocks. Required lifetimes never share a byte. Where preferred
    lifetimes share a byte, one group waits for the other: each group takes the first offset at
    which its longest wait is shortest. Groups are placed in the order of `priority` (their numbers;
    default: `placement_priority`). A group without a free offset evicts others, which are placed
    again. A group that is evicted too often stays unplaced.
    """
    order = placement_priority(preferred, required) if priority is None else priority
    rank = {index: place for place, index in enumerate(order)}
    assignment = _SoftAssignment(preferred, required, capacity)
    waiting, unplaced = list(range(len(order))), list[int]()
    evictions, left = Counter[int](), MOST_EVICTIONS_OF_ALL
    while waiting:
        index = order[heappop(waiting)]
        evicted = assignment.add(index)
        if evicted is None:
            unplaced.append(index)
            continue
        evictions.update(evicted)
        left -= len(evicted)
        for other in evicted:
            if evictions[other] > MOST_EVICTIONS or left < 0:
                unplaced.append(other)
            else:
                heappush(waiting, rank[other])
    return tuple(assignment.offsets), tuple(sorted(unplaced))


def placement_priority(
    preferred: Sequence[AllocationGroup], required: Sequence[AllocationGroup]
) -> Sequence[int]:
    """The numbers of the groups, those live at the fullest time first; of one time by start."""
    peak = peak_live_nbytes(required)
    numbers = range(len(required))
    return sorted(numbers, key=lambda i: (-peak[i], preferred[i].first, -preferred[i].nbytes))


class _SoftAssignment:
    """The offsets found so far, and the bytes of each interval that is placed.

    Intervals are numbered group by group. Those of group i are `_starts[i]` to `_starts[i + 1]`.
    """

    def __init__(
        self,
        preferred: Sequence[AllocationGroup],
        required: Sequence[AllocationGroup],
        capacity: int,
    ) -> None:
        counts = [len(each.intervals) for each in preferred]
        self.offsets = [0] * len(preferred)
        self._preferred, self._required, self._capacity = preferred, required, capacity
        self._starts = [0, *accumulate(counts)]
        self._owners = np.repeat(np.arange(len(counts)), counts)
        self._soft, self._hard = columns_of(preferred), columns_of(required)
        self._within, self._nbytes = self._soft[0], self._soft[1]
        self._lows, self._highs = np.zeros((2, self._starts[-1]), np.int64)
        self._placed = np.zeros(self._starts[-1], np.bool_)
        few = self._starts[-1] <= FEW_INTERVALS
        self._known = self._waits(slice(None), slice(None)) if few else None
        self._weights = np.array([each.nbytes for each in preferred], np.float64)

    def add(self, index: int) -> Sequence[int] | None:
        """Place a group; gives the numbers of the groups that it evicts.

        Gives None where the group exceeds the capacity.
        """
        highest = (self._capacity - self._preferred[index].nbytes) & -ALIGNMENT
        if highest < 0:
            return None
        lows, highs, waits, owners = self._blocked(index)
        offset, evicted = lowest_free_of(lows, highs), list[int]()
        if offset > highest:
            offsets = _candidates(lows, highs, highest)
            hard = waits >= FORBIDDEN
            ends = lows[hard], highs[hard]
            free = offsets[_sums(offsets, *ends) == 0]
            if free.size:
                soft = ~hard
                longest = _longest_waits(free, lows[soft], highs[soft], waits[soft])
                offset = int(free[longest.argmin()])
            else:
                offset = int(offsets[_sums(offsets, *ends, self._weights[owners[hard]]).argmin()])
                inside = (offset > lows) & (offset < highs)
                evicted = sorted(set(owners[inside & hard].tolist()))
                self._weights[index] *= EVICTOR_WEIGHT
        for other in evicted:
            self._placed[self._intervals(other)] = False
        self._place(index, offset)
        return evicted

    def _intervals(self, index: int) -> slice:
        return slice(self._starts[index], self._starts[index + 1])

    def _blocked(self, index: int) -> tuple[Array, Array, Array, Array]:
        """Open ranges of offsets that placed intervals block.

        Gives their low and high ends, their waits in preferred time, and the blocking groups.
        """
        mine = self._intervals(index)
        if self._known is None:
            near = self._near(index)
            waits = self._waits(mine, near)
            own, at = (waits > 0).nonzero()
            found, other = waits[own, at], near[at]
        else:
            own, other = ((self._known[mine] > 0) & self._placed).nonzero()
            found = self._known[mine][own, other]
        within = self._within[mine][own]
        lows = self._lows[other] - within - self._nbytes[mine][own]
        return lows, self._highs[other] - within, found, self._owners[other]

    def _near(self, index: int) -> Array:
        """The placed intervals that share a time with the group's."""
        near = np.zeros_like(self._placed)
        both = self._preferred[index], self._required[index]
        for group, (_, _, first, last) in zip(both, (self._soft, self._hard), strict=True):
            near |= (first <= group.last) & (last >= group.first)
        found: Array = (near & self._placed).nonzero()[0]
        return found

    def _waits(self, mine: slice, others: Array | slice) -> Array:
        """How long each of these intervals would wait for each of the others [these, others].

        The wait is at most 0 where they share no time, and FORBIDDEN where required lifetimes do.
        """
        preferred, required = (
            np.minimum(last[others], last[mine, None])
            - np.maximum(first[others], first[mine, None])
            for _, _, first, last in (self._soft, self._hard)
        )
        waits: Array = np.where(required >= 0, FORBIDDEN, preferred + 1)
        return waits

    def _place(self, index: int, offset: int) -> None:
        mine = self._intervals(index)
        self.offsets[index] = offset
        self._lows[mine] = lows = offset + self._within[mine]
        self._highs[mine] = lows + self._nbytes[mine]
        self._placed[mine] = True


def _candidates(lows: Array, highs: Array, highest: int) -> Array:
    """The aligned offsets 0, `highest` and, between them, the ends of the open ranges, sorted.

    No other offset lies in fewer of the ranges. An offset may be there several times.
    """
    ends = np.concatenate(([0, highest], align_each(highs), lows & -ALIGNMENT))
    offsets: Array = ends[(ends >= 0) & (ends <= highest)]
    offsets.sort()
    return offsets


def _sums(
    offsets: Array, lows: Array, highs: Array, amounts: Amounts | None = None
) -> Amounts | Array:
    """By offset, the sum of the amounts (default: 1) of the open ranges (low, high) with it."""
    starts, stops = offsets.searchsorted(lows, "right"), offsets.searchsorted(highs, "left")
    begun, ended = (np.bincount(at, amounts, 1 + len(offsets)) for at in (starts, stops))
    sums: Amounts | Array = (begun - ended)[:-1].cumsum()
    return sums


def _longest_waits(offsets: Array, lows: Array, highs: Array, waits: Array) -> Array:
    """By offset, the longest wait of the open ranges (low, high) that hold it."""
    longest = np.zeros(len(offsets), np.int64)
    starts, stops = offsets.searchsorted(lows, "right"), offsets.searchsorted(highs, "left")
    spans = np.stack((waits, starts, stops))[:, starts < stops].T.tolist()
    for wait, start, stop in sorted(spans):
        longest[start:stop] = wait
    return longest

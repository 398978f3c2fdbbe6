"""Soft offset assignment: intervals have a preferred lifetime beside the required one.

Intervals never share a byte during their required lifetimes. Where preferred lifetimes share a
byte, one interval waits for the other.
"""

from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from .intervals import ALIGNMENT, AllocationGroup, Array, align_each, peak_live_nbytes
from .offsets import lowest_free_of

# Evictions of one group after which it stays unplaced.
MOST_EVICTIONS = 8
# Evictions of all groups after which an evicted group stays unplaced.
MOST_EVICTIONS_OF_ALL = 2000
# A time after all others.
NEVER = 1 << 60
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
    """The offsets found so far, and the placed intervals as columns of an array.

    Its rows: low byte, high byte, first and last preferred time, first and last required time,
    number of the group.
    """

    def __init__(
        self,
        preferred: Sequence[AllocationGroup],
        required: Sequence[AllocationGroup],
        capacity: int,
    ) -> None:
        self.offsets = [0] * len(preferred)
        self._preferred, self._required, self._capacity = preferred, required, capacity
        self._rows: Array = np.zeros((7, sum(len(each.intervals) for each in preferred)), np.int64)
        self._rows[[2, 4]] = NEVER
        self._unused = list(range(self._rows.shape[1]))
        self._columns: dict[int, list[int]] = {}
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
            free = offsets[_sums(offsets, *ends, np.ones(len(ends[0]))) == 0]
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
            self._remove(other)
        self._place(index, offset)
        return evicted

    def _blocked(self, index: int) -> tuple[Array, Array, Array, Array]:
        """Open ranges of offsets that placed intervals block.

        Gives their low and high ends, their waits in preferred time, and the blocking groups.
        """
        found = []
        both = self._preferred[index].intervals, self._required[index].intervals
        for soft, hard in zip(*both, strict=True):
            _, _, first, last, since, until, _ = self._rows
            may = (first <= soft.last) & (last >= soft.first)
            must = (since <= hard.last) & (until >= hard.first)
            near = (may | must).nonzero()[0]
            low, high, first, last, _, _, owner = self._rows[:, near]
            waits = np.minimum(last, soft.last) - np.maximum(first, soft.first) + 1
            lows, highs = low - soft.offset - soft.nbytes, high - soft.offset
            found.append((lows, highs, np.where(must[near], FORBIDDEN, waits), owner))
        lows, highs, waits, owners = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return lows, highs, waits, owners

    def _place(self, index: int, offset: int) -> None:
        self.offsets[index] = offset
        columns = self._columns[index] = []
        both = self._preferred[index].intervals, self._required[index].intervals
        for soft, hard in zip(*both, strict=True):
            columns.append(self._unused.pop())
            low = offset + soft.offset
            times = soft.first, soft.last, hard.first, hard.last
            self._rows[:, columns[-1]] = (low, low + soft.nbytes, *times, index)

    def _remove(self, index: int) -> None:
        columns = self._columns.pop(index)
        self._rows[2, columns] = self._rows[4, columns] = NEVER
        self._unused += columns


def _candidates(lows: Array, highs: Array, highest: int) -> Array:
    """The aligned offsets 0, `highest` and, between them, the ends of the open ranges, sorted.

    No other offset lies in fewer of the ranges.
    """
    ends = np.unique(np.concatenate(([0, highest], align_each(highs), lows & -ALIGNMENT)))
    offsets: Array = ends[(ends >= 0) & (ends <= highest)]
    return offsets


def _sums(offsets: Array, lows: Array, highs: Array, amounts: Amounts) -> Amounts:
    """By offset, the sum of the amounts of the open ranges (low, high) that hold it."""
    starts, stops = offsets.searchsorted(lows, "right"), offsets.searchsorted(highs, "left")
    begun, ended = (np.bincount(at, amounts, 1 + len(offsets)) for at in (starts, stops))
    sums: Amounts = (begun - ended)[:-1].cumsum()
    return sums


def _longest_waits(offsets: Array, lows: Array, highs: Array, waits: Array) -> Array:
    """By offset, the longest wait of the open ranges (low, high) that hold it."""
    longest = np.zeros(len(offsets), np.int64)
    starts, stops = offsets.searchsorted(lows, "right"), offsets.searchsorted(highs, "left")
    spans = np.stack((waits, starts, stops))[:, starts < stops].T.tolist()
    for wait, start, stop in sorted(spans):
        longest[start:stop] = wait
    return longest

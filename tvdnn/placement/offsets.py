"""Free offsets: the aligned offsets at which a group overlaps no placed interval.

A placed interval that is live at one time with an interval of the group blocks an open range of
offsets. First fit takes the lowest offset that no range blocks, best fit the shortest gap between
ranges. Few ranges are compared one by one, many as arrays. Both give the same offsets.
"""

from collections.abc import Sequence
from sys import maxsize
from typing import TypeAlias

import numpy as np

from .intervals import AllocationGroup, Array, BufferInterval, align_each, aligned

Placed: TypeAlias = tuple[int, int, int, int]  # of an interval: low and high byte, first, last time


def lowest_fit_of_one(placed: Sequence[Placed], interval: BufferInterval) -> int:
    """The lowest aligned offset of a group of one interval; `placed` are sorted."""
    offset, nbytes, first, last = interval
    lowest = 0
    for low, high, since, until in placed:
        if since <= last and until >= first:
            if low - offset - nbytes >= lowest:
                break
            if high - offset > lowest:
                lowest = aligned(high - offset)
    return lowest


def blocked_ranges(placed: Sequence[Placed], group: AllocationGroup) -> list[tuple[int, int]]:
    """Open ranges of offsets at which an interval of `group` overlaps a placed one."""
    start, end = group.first, group.last
    near = [each for each in placed if each[2] <= end and each[3] >= start]
    return [
        (low - offset - nbytes, high - offset)
        for offset, nbytes, first, last in group.intervals
        for low, high, since, until in near
        if since <= last and until >= first
    ]


def lowest_free(blocked: Sequence[tuple[int, int]]) -> int:
    """The lowest multiple of 512 inside none of the open ranges."""
    lowest = 0
    for low, high in sorted(blocked):
        if low >= lowest:
            break
        if high > lowest:
            lowest = aligned(high)
    return lowest


def blocked_arrays(near: Array, group: AllocationGroup) -> tuple[Array, Array]:
    """`blocked_ranges` as arrays of low and high ends; `near` are placed intervals [4, n]."""
    rows = [(each.offset, each.nbytes, each.first, each.last) for each in group.intervals]
    own = np.array(rows, np.int64).T[:, :, None]  # [4, intervals, 1]
    overlap = (near[2] <= own[3]) & (near[3] >= own[2])  # [intervals, near]
    return (near[0] - own[0] - own[1])[overlap], (near[1] - own[0])[overlap]


def lowest_free_of(lows: Array, highs: Array) -> int:
    """`lowest_free` of the open ranges (low, high) as arrays."""
    order = np.argsort(lows, kind="stable")
    return lowest_free_of_sorted(lows[order], highs[order])


def lowest_free_of_sorted(lows: Array, highs: Array) -> int:
    """`lowest_free` of the open ranges (low, high) as arrays, sorted by their low ends."""
    if lows.size == 0 or lows[0] >= 0:
        return 0
    starts = np.maximum.accumulate(align_each(highs))
    free = (np.maximum(starts[:-1], 0) <= lows[1:]).nonzero()[0]
    return max(0, int(starts[free[0] if free.size else -1]))


def best_fit(lows: Array, highs: Array) -> int:
    """The lowest multiple of 512 in the shortest gap between the open ranges (low, high)."""
    order = np.argsort(lows, kind="stable")
    lows, highs = lows[order], np.maximum.accumulate(highs[order])
    starts = np.concatenate(([0], np.maximum(0, align_each(highs))))
    spare = np.concatenate((lows - starts[:-1], [maxsize]))
    free = np.flatnonzero(spare >= 0)
    return int(starts[free[np.argmin(spare[free])]])

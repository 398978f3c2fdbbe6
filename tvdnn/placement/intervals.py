"""Live intervals of bytes, in groups that are placed as a whole, and bounds on their memory.

An interval has bytes for some time (XLA's heap simulator: BufferInterval). Sections that a launch
needs contiguous are intervals of one group (XLA: colocations). Most groups have one interval.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

# Bytes of which every offset is a multiple.
ALIGNMENT = 512

Array: TypeAlias = npt.NDArray[np.int64]


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to a multiple of 512."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def align_each(nbytes: Array) -> Array:
    """Each of `nbytes` rounded up to a multiple of 512."""
    return (nbytes + (ALIGNMENT - 1)) & -ALIGNMENT


class BufferInterval(NamedTuple):
    """`nbytes` at `offset` in a group, live from time `first` through time `last`."""

    offset: int
    nbytes: int
    first: int
    last: int


class AllocationGroup(NamedTuple):
    """Intervals at fixed distances from one offset: sections that launches need contiguous."""

    intervals: tuple[BufferInterval, ...]
    first: int
    last: int
    nbytes: int

    @classmethod
    def of(cls, intervals: Sequence[BufferInterval]) -> "AllocationGroup":
        """The group of `intervals`, with the time and the bytes that it spans."""
        if len(intervals) == 1:
            (only,) = intervals
            return cls((only,), only.first, only.last, only.offset + only.nbytes)
        first = min(each.first for each in intervals)
        last = max(each.last for each in intervals)
        nbytes = max(each.offset + each.nbytes for each in intervals)
        return cls(tuple(intervals), first, last, nbytes)


def order_by_start(groups: Sequence[AllocationGroup]) -> list[int]:
    """The numbers of the groups by their first time; of one time the largest first."""
    return sorted(range(len(groups)), key=lambda i: (groups[i].first, -groups[i].nbytes))


def peak_live_nbytes(groups: Sequence[AllocationGroup]) -> list[int]:
    """By group, the most bytes live at one time of the group's span."""
    live = _live_of(groups)
    return [int(live[group.first : group.last + 1].max()) for group in groups]


def lower_bound_nbytes(groups: Sequence[AllocationGroup]) -> int:
    """A lower bound in bytes on the high-water mark of every placement.

    The bound counts units of 512 bytes. Offsets are aligned. An interval has for itself the units
    that it begins in and those whose start it covers. The uppermost interval of a time may leave
    the rest of its last unit.
    """
    offset, nbytes, first, last = columns_of(groups)
    ends = align_each(offset + nbytes)
    live = live_by_time(ends - align_each(offset), first, last)
    rest, left = np.zeros_like(live), ends - offset - nbytes
    for at in left.nonzero()[0]:
        span = slice(first[at], last[at] + 1)
        rest[span] = np.maximum(rest[span], left[at])
    return int((live - rest).max(initial=0))


def max_live_nbytes(groups: Sequence[AllocationGroup]) -> int:
    """The most bytes live at one time."""
    return int(_live_of(groups).max(initial=0))


def _live_of(groups: Sequence[AllocationGroup]) -> Array:
    _, nbytes, first, last = columns_of(groups)
    return live_by_time(nbytes, first, last)


def columns_of(groups: Sequence[AllocationGroup]) -> Array:
    """The fields of all intervals: offset, bytes, first and last time [4, intervals]."""
    intervals = [interval for group in groups for interval in group.intervals]
    return np.array(intervals, np.int64).reshape(-1, 4).T


def live_by_time(amounts: Array, first: Array, last: Array) -> Array:
    """By time, the sum of the amounts that are live from `first` through `last` [times].

    The times are those up to one behind the last `last`.
    """
    change = np.zeros(int(last.max(initial=-1)) + 2, np.int64)
    np.add.at(change, first, amounts)
    np.subtract.at(change, last + 1, amounts)
    live: Array = np.cumsum(change)
    return live

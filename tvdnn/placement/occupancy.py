"""First fit: the bytes that placed groups occupy, and the lowest free offset of the next group."""

from bisect import bisect_right, insort
from collections.abc import Iterator

import numpy as np

from .intervals import AllocationGroup, Array
from .offsets import (
    Placed,
    best_fit,
    blocked_arrays,
    blocked_ranges,
    lowest_fit_of_one,
    lowest_free,
    lowest_free_of,
    lowest_free_of_sorted,
)

# Intervals up to which a list is faster than arrays.
FEW_INTERVALS = 256
# New intervals above which the arrays are sorted anew.
MANY_NEW = 8


class Occupancy:
    """The placed intervals by their low bytes: few as a list, many as parallel arrays.

    `num_intervals` is the most intervals that are added.
    """

    def __init__(self, num_intervals: int, *, best_fit: bool = False) -> None:
        self.high_water = 0
        self._best_fit = best_fit
        self._few = num_intervals <= FEW_INTERVALS
        self._lows: list[int] = []
        self._listed: list[Placed] = []
        self._rows: Array = np.zeros((4, max(1, num_intervals)), np.int64)
        self._new: list[Placed] = []

    def add(self, group: AllocationGroup, offset: int) -> None:
        self._new += placed_at(group, offset)
        self.high_water = max(self.high_water, offset + group.nbytes)

    def fit(self, group: AllocationGroup) -> int:
        """An aligned offset at which `group` overlaps no placed interval: the lowest, or best."""
        if self._few:
            return self._fit_in_list(group)
        rows = self._sorted_rows()
        near = ((rows[2] <= group.last) & (rows[3] >= group.first)).nonzero()[0]
        if near.size == 0:
            return 0
        if len(group.intervals) == 1 and not self._best_fit:
            only = group.intervals[0]
            lows = rows[0].take(near) - (only.offset + only.nbytes)
            return lowest_free_of_sorted(lows, rows[1].take(near) - only.offset)
        rows = rows.take(near, 1)
        return (best_fit if self._best_fit else lowest_free_of)(*blocked_arrays(rows, group))

    def _fit_in_list(self, group: AllocationGroup) -> int:
        placed = self._sorted_list()
        if len(group.intervals) == 1 and not self._best_fit:
            return lowest_fit_of_one(placed, group.intervals[0])
        blocked = blocked_ranges(placed, group)
        if not self._best_fit or not blocked:
            return lowest_free(blocked)
        return best_fit(*np.array(blocked, np.int64).T)

    def _sorted_list(self) -> list[Placed]:
        for placed in self._new:
            insort(self._listed, placed)
        self._new.clear()
        return self._listed

    def _sorted_rows(self) -> Array:
        """The placed intervals as columns, sorted by low byte [4, intervals]."""
        lows, rows = self._lows, self._rows
        if len(self._new) > MANY_NEW:
            merged = np.concatenate((rows[:, : len(lows)], np.array(self._new, np.int64).T), 1)
            self._set_rows(merged[:, np.argsort(merged[0], kind="stable")])
            return self._rows[:, : len(self._lows)]
        for placed in self._new:
            at, end = bisect_right(lows, placed[0]), len(lows)
            lows.insert(at, placed[0])
            rows[:, at + 1 : end + 1] = rows[:, at:end]
            rows[:, at] = placed
        self._new.clear()
        return rows[:, : len(lows)]

    def _set_rows(self, rows: Array) -> None:
        """Replace all placed intervals by sorted `rows` [4, intervals]."""
        self._rows[:, : rows.shape[1]] = rows
        self._lows = rows[0].tolist()
        self._new.clear()


def placed_at(group: AllocationGroup, offset: int) -> Iterator[Placed]:
    """The low and high byte, first and last time of each interval of `group` at `offset`."""
    for start, nbytes, first, last in group.intervals:
        yield offset + start, offset + start + nbytes, first, last

"""Taken: the bytes of the extents placed so far, and the base at which the next one meets none."""

from bisect import bisect_right, insort
from collections.abc import Iterator

import numpy as np

from .intervals import Array, Extent
from .offsets import Row, barred, first_gap, forbidden, gap_between, low_base, low_gap, tightest_gap

FEW_STAYS = 256  # up to which looking at each is faster than at arrays
MANY_LATEST = 8  # new ones, from which all are sorted anew


class Taken:
    """The stays placed so far by their low addresses: as parallel arrays, if few as a list."""

    def __init__(self, capacity: int, *, tight: bool = False) -> None:
        self.high_water = 0
        self._tight = tight
        self._few = capacity <= FEW_STAYS
        self._lows: list[int] = []
        self._stays: list[Row] = []
        self._rows: Array = np.zeros((4, max(1, capacity)), np.int64)
        self._latest: list[Row] = []

    def add(self, extent: Extent, base: int) -> None:
        self._latest += occupied(extent, base)
        self.high_water = max(self.high_water, base + extent.nbytes)

    def base(self, extent: Extent) -> int:
        """An aligned base at which no stay of `extent` meets one placed before."""
        alone = len(extent.stays) == 1 and not self._tight
        if self._few:
            stays = self._listed()
            if alone:
                return low_base(stays, extent.stays[0])
            intervals = barred(stays, extent)
            if not self._tight or not intervals:
                return low_gap(intervals)
            return tightest_gap(*np.array(intervals, np.int64).T)
        rows = self._entered()
        near = ((rows[2] <= extent.last) & (rows[3] >= extent.first)).nonzero()[0]
        if near.size == 0:
            return 0
        if alone:
            stay = extent.stays[0]
            lows = rows[0].take(near) - (stay.offset + stay.nbytes)
            return gap_between(lows, rows[1].take(near) - stay.offset)
        rows = rows.take(near, 1)
        return (tightest_gap if self._tight else first_gap)(*forbidden(rows, extent))

    def _listed(self) -> list[Row]:
        """All stays in the list."""
        for stay in self._latest:
            insort(self._stays, stay)
        self._latest.clear()
        return self._stays

    def _entered(self) -> Array:
        """All stays in the arrays."""
        lows, rows = self._lows, self._rows
        if len(self._latest) > MANY_LATEST:
            merged = np.concatenate((rows[:, : len(lows)], np.array(self._latest, np.int64).T), 1)
            self._enter(merged[:, np.argsort(merged[0], kind="stable")])
            return self._rows[:, : len(self._lows)]
        for stay in self._latest:
            at, end = bisect_right(lows, stay[0]), len(lows)
            lows.insert(at, stay[0])
            rows[:, at + 1 : end + 1] = rows[:, at:end]
            rows[:, at] = stay
        self._latest.clear()
        return rows[:, : len(lows)]

    def _enter(self, rows: Array) -> None:
        """Let these, in order, be all the stays."""
        self._rows[:, : rows.shape[1]] = rows
        self._lows = rows[0].tolist()
        self._latest.clear()


def occupied(extent: Extent, base: int) -> Iterator[Row]:
    """Low and high address, first and last time of each stay."""
    for offset, nbytes, first, last in extent.stays:
        yield base + offset, base + offset + nbytes, first, last

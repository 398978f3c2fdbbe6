"""First fit for groups in the order of their starts: a sweep over time with a free list.

Live intervals leave free gaps of bytes between them. The free list keeps the gaps by address while
intervals begin and end.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from sys import maxsize

from .intervals import ALIGNMENT, AllocationGroup, aligned
from .occupancy import Occupancy, placed_at

# Placed intervals from which ended ones are first dropped from the arrays.
FIRST_PRUNE = 256


class SweepFirstFit(Occupancy):
    """The placed intervals, where no group begins before the groups placed earlier.

    A group whose intervals begin together can overlap live intervals, and later intervals of groups
    placed before. It takes a gap between the live ones. For ten thousand layers the sweep is twenty
    times as fast as `Occupancy`.

    """

    def __init__(self, num_intervals: int, *, best_fit: bool = False) -> None:
        super().__init__(num_intervals, best_fit=best_fit)
        self._free = _FreeList()
        self._live: list[tuple[int, int, int]] = []  # heap of (last, low, high)
        self._coming: list[tuple[int, int, int, int]] = []  # heap of (first, last, low, high)
        self._next_prune = FIRST_PRUNE

    def add(self, group: AllocationGroup, offset: int) -> None:
        super().add(group, offset)
        for low, high, first, last in placed_at(group, offset):
            heappush(self._coming, (first, last, low, high))

    def fit(self, group: AllocationGroup) -> int:
        self._advance_to(group.first)
        if len(group.intervals) > 1 and any(each.first > group.first for each in group.intervals):
            self._drop_ended(group.first)
            return super().fit(group)
        blocked = sorted(
            (low - each.offset - each.nbytes, high - each.offset)
            for first, _, low, high in self._coming
            for each in group.intervals
            if first <= each.last
        )
        fits = self._free.fits(group.nbytes, blocked)
        return min(fits)[1] if self._best_fit else next(fits)[1]

    def highest_fit(self, group: AllocationGroup, capacity: int) -> int:
        """The highest free offset below `capacity` for a group of one interval.

        Gives `capacity` where there is none.
        """
        self._advance_to(group.first)
        blocked = [
            (low - group.nbytes, high)
            for first, _, low, high in self._coming
            if first <= group.last
        ]
        return self._free.highest_fit(group.nbytes, sorted(blocked, reverse=True), capacity)

    def _advance_to(self, time: int) -> None:
        """Take the bytes of intervals that begin up to `time`; free those that end before it."""
        while self._coming and self._coming[0][0] <= time:
            first, last, low, high = heappop(self._coming)
            self._free_before(first)
            self._free.take(low, high)
            heappush(self._live, (last, low, high))
        self._free_before(time)

    def _free_before(self, time: int) -> None:
        while self._live and self._live[0][0] < time:
            _, low, high = heappop(self._live)
            self._free.give_back(low, high)

    def _drop_ended(self, time: int) -> None:
        """Drop intervals that ended before `time` whenever the arrays have doubled."""
        if self._few:
            return
        rows = self._sorted_rows()
        if rows.shape[1] < self._next_prune:
            return
        self._set_rows(rows[:, rows[3] >= time])
        self._next_prune = 2 * len(self._lows) + FIRST_PRUNE


class _FreeList:
    """Free bytes as gaps [low, high) in the order of their addresses; the last has no end."""

    def __init__(self) -> None:
        self._lows, self._highs = [0], [maxsize]

    def fits(self, nbytes: int, blocked: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """By gap that holds `nbytes`: the spare bytes, and the lowest aligned offset in it.

        The offset is inside none of the `blocked` ranges, which are open and sorted.
        """
        for low, high in zip(self._lows, self._highs, strict=True):
            if high - low < nbytes:
                continue
            offset = aligned(low)
            for start, stop in blocked:
                if start < offset < stop:
                    offset = aligned(stop)
            if offset + nbytes <= high:
                yield high - low - nbytes, offset

    def highest_fit(self, nbytes: int, blocked: Sequence[tuple[int, int]], capacity: int) -> int:
        """The highest aligned offset of `nbytes` below `capacity`; `capacity` if there is none.

        The offset is inside none of the `blocked` ranges, which are open and sorted from the last.
        """
        for low, high in zip(reversed(self._lows), reversed(self._highs), strict=True):
            offset = (min(high, capacity) - nbytes) & -ALIGNMENT
            for start, stop in blocked:
                if start < offset < stop:
                    offset = start & -ALIGNMENT
            if offset >= low:
                return offset
        return capacity

    def take(self, low: int, high: int) -> None:
        """Take bytes [low, high), which are free."""
        at = bisect_right(self._lows, low) - 1
        stop = self._highs[at]
        if self._lows[at] < low:
            self._highs[at] = low
            at += 1
        else:
            del self._lows[at], self._highs[at]
        if high < stop:
            self._lows.insert(at, high)
            self._highs.insert(at, stop)

    def give_back(self, low: int, high: int) -> None:
        """Free bytes [low, high) again."""
        first = last = bisect_right(self._lows, low)
        if first and self._highs[first - 1] == low:
            first -= 1
            low = self._lows[first]
        if self._lows[last] == high:
            high = self._highs[last]
            last += 1
        self._lows[first:last], self._highs[first:last] = [low], [high]

"""Placement: a base address for every extent, so that no two stays share a byte at one time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ALIGNMENT = 512

Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stay:
    """`nbytes` at `offset` within an extent, occupied from time `first` to time `last`, both included."""

    offset: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Extent:
    """Stays at fixed distances from one base address: sections that launches want side by side."""

    stays: tuple[Stay, ...]

    @property
    def first(self) -> int:
        return min(stay.first for stay in self.stays)

    @property
    def last(self) -> int:
        return max(stay.last for stay in self.stays)

    @property
    def nbytes(self) -> int:
        return max(stay.offset + stay.nbytes for stay in self.stays)


def place(extents: Sequence[Extent]) -> tuple[tuple[int, ...], int]:
    """Base addresses (multiples of 512) in the order of `extents`, and the high-water mark.

    Two greedy orders are tried, by start and by size, each extent at the lowest address that its neighbours in time leave
    free; the lower mark wins.
    """
    by_start = sorted(range(len(extents)), key=lambda i: (extents[i].first, -extents[i].nbytes))
    by_size = sorted(range(len(extents)), key=lambda i: (-extents[i].nbytes, extents[i].first))
    orders = (by_start, by_size) if len(extents) <= 3000 else (by_start,)
    return min((_place_in(extents, order) for order in orders), key=lambda placed: placed[1])


def _place_in(extents: Sequence[Extent], order: Sequence[int]) -> tuple[tuple[int, ...], int]:
    bases = [0] * len(extents)
    taken = _Taken(sum(len(extent.stays) for extent in extents))
    prune = all(extents[a].first <= extents[b].first for a, b in zip(order, order[1:], strict=False))
    for index in order:
        extent = extents[index]
        if prune:
            taken.forget_before(extent.first)
        bases[index] = taken.lowest_base(extent)
        taken.add(extent, bases[index])
    return tuple(bases), taken.high_water


class _Taken:
    """The stays placed so far, as parallel arrays."""

    def __init__(self, capacity: int) -> None:
        self.high_water = 0
        self._count = 0
        self._rows: Array = np.zeros((4, max(1, capacity)), np.int64)  # low, high, first, last
        self._next_prune = 256

    def add(self, extent: Extent, base: int) -> None:
        for stay in extent.stays:
            low = base + stay.offset
            self._rows[:, self._count] = (low, low + stay.nbytes, stay.first, stay.last)
            self._count += 1
        self.high_water = max(self.high_water, base + extent.nbytes)

    def forget_before(self, time: int) -> None:
        """Drop stays that ended before `time`, now and then."""
        if self._count < self._next_prune:
            return
        alive = self._rows[3, : self._count] >= time
        kept = self._rows[:, : self._count][:, alive]
        self._count = kept.shape[1]
        self._rows[:, : self._count] = kept
        self._next_prune = 2 * self._count + 256

    def lowest_base(self, extent: Extent) -> int:
        rows = self._rows[:, : self._count]
        near = rows[:, (rows[2] <= extent.last) & (rows[3] >= extent.first)]
        if near.shape[1] == 0:
            return 0
        lows, highs = zip(*(_forbidden(near, stay) for stay in extent.stays), strict=True)
        return _first_gap(np.concatenate(lows), np.concatenate(highs))


def _forbidden(near: Array, stay: Stay) -> tuple[Array, Array]:
    """Open intervals of base addresses at which `stay` would meet a stay in `near`."""
    meets = near[:, (near[2] <= stay.last) & (near[3] >= stay.first)]
    return meets[0] - stay.offset - stay.nbytes, meets[1] - stay.offset


def _first_gap(lows: Array, highs: Array) -> int:
    """The lowest multiple of the alignment inside none of the open intervals (low, high)."""
    order = np.argsort(lows, kind="stable")
    lows, highs = lows[order], np.maximum.accumulate(highs[order])
    starts = np.concatenate(([0], np.maximum(0, -(-highs // ALIGNMENT) * ALIGNMENT)))
    ends = np.concatenate((lows, [np.iinfo(np.int64).max]))
    return int(starts[np.argmax(starts <= ends)])

"""Placement: a base address for every extent, so that no two stays share a byte at one time."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

ALIGNMENT = 512

Array = npt.NDArray[np.int64]


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Stay:
    """`nbytes` at `offset` in an extent, occupied from time `first` through `last`."""

    offset: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Extent:
    """Stays at fixed distances from one base address: sections that launches want side by side."""

    stays: tuple[Stay, ...]
    first: int
    last: int
    nbytes: int

    @classmethod
    def of(cls, stays: Sequence[Stay]) -> "Extent":
        """The extent of `stays`, with the time and bytes that it spans."""
        first, last = min(stay.first for stay in stays), max(stay.last for stay in stays)
        return cls(tuple(stays), first, last, max(stay.offset + stay.nbytes for stay in stays))


def place(extents: Sequence[Extent]) -> tuple[tuple[int, ...], int]:
    """Base addresses (multiples of 512) in the order of `extents`, and the high-water mark.

    Two greedy orders are tried, by start and by size, each extent at the lowest address that its
    neighbours in time leave free; the lower mark wins.
    """
    by_start = sorted(range(len(extents)), key=lambda i: (extents[i].first, -extents[i].nbytes))
    by_size = sorted(range(len(extents)), key=lambda i: (-extents[i].nbytes, extents[i].first))
    orders = (by_start, by_size) if len(extents) <= 3000 else (by_start,)
    return min((_place_in(extents, order) for order in orders), key=lambda placed: placed[1])


def _place_in(extents: Sequence[Extent], order: Sequence[int]) -> tuple[tuple[int, ...], int]:
    bases = [0] * len(extents)
    taken = _Taken(sum(len(extent.stays) for extent in extents))
    prune = all(extents[a].first <= extents[b].first for a, b in pairwise(order))
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
        """The lowest aligned base at which no stay of `extent` meets one placed before."""
        rows = self._rows[:, : self._count]
        near = rows[:, (rows[2] <= extent.last) & (rows[3] >= extent.first)]
        if near.shape[1] == 0:
            return 0
        return _first_gap(*_forbidden(near, extent))


def _forbidden(near: Array, extent: Extent) -> tuple[Array, Array]:
    """Open intervals of base addresses at which a stay of `extent` would meet a stay in `near`."""
    rows = [(stay.offset, stay.nbytes, stay.first, stay.last) for stay in extent.stays]
    stays = np.array(rows, np.int64).T[:, :, None]  # [4, stays, 1]
    meets = (near[2] <= stays[3]) & (near[3] >= stays[2])  # [stays, near]
    return (near[0] - stays[0] - stays[1])[meets], (near[1] - stays[0])[meets]


def _first_gap(lows: Array, highs: Array) -> int:
    """The lowest multiple of the alignment inside none of the open intervals (low, high)."""
    order = np.argsort(lows, kind="stable")
    lows, highs = lows[order], np.maximum.accumulate(highs[order])
    starts = np.maximum(0, -(-highs // ALIGNMENT) * ALIGNMENT)
    if lows.size == 0 or lows[0] >= 0:
        return 0
    free = starts[:-1] <= lows[1:]
    return int(starts[np.argmax(free)] if free.any() else starts[-1])

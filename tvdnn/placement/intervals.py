"""Extents: stays in memory at fixed distances from one base, and what of them is alive when.

A stay has bytes for some time. Sections that a launch wants side by side are stays of one extent,
which is placed as a whole; most extents are of one stay. What is alive at one time tells how few
bytes a placement may take, and where it is tightest.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

ALIGNMENT = 512

Array: TypeAlias = npt.NDArray[np.int64]


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def all_aligned(nbytes: Array) -> Array:
    """What `aligned` gives, of each."""
    return (nbytes + (ALIGNMENT - 1)) & -ALIGNMENT


class Stay(NamedTuple):
    """`nbytes` at `offset` in an extent, occupied from time `first` through `last`."""

    offset: int
    nbytes: int
    first: int
    last: int


class Extent(NamedTuple):
    """Stays at fixed distances from one base address: sections that launches want side by side."""

    stays: tuple[Stay, ...]
    first: int
    last: int
    nbytes: int

    @classmethod
    def of(cls, stays: Sequence[Stay]) -> "Extent":
        """The extent of `stays`, with the time and bytes that it spans."""
        if len(stays) == 1:
            (stay,) = stays
            return cls((stay,), stay.first, stay.last, stay.offset + stay.nbytes)
        first, last = min(stay.first for stay in stays), max(stay.last for stay in stays)
        return cls(tuple(stays), first, last, max(stay.offset + stay.nbytes for stay in stays))


def by_start(extents: Sequence[Extent]) -> list[int]:
    """The extents by number, in the order in which they begin; of a moment the largest first."""
    return sorted(range(len(extents)), key=lambda i: (extents[i].first, -extents[i].nbytes))


def fullest(extents: Sequence[Extent]) -> list[int]:
    """By extent, the bytes alive at the fullest time of its span."""
    alive = _alive_of(extents)
    return [int(alive[extent.first : extent.last + 1].max()) for extent in extents]


def least_nbytes(extents: Sequence[Extent]) -> int:
    """A mark that no placement is below, from the units of `ALIGNMENT` bytes that live at once.

    Bases are aligned, so a stay has for itself the units that it begins or whose start it covers.
    The uppermost stay of a moment may leave the rest of its last unit.
    """
    offset, nbytes, first, last = _columns(extents)
    ends = all_aligned(offset + nbytes)
    alive = _alive(ends - all_aligned(offset), first, last)
    rest, left = np.zeros_like(alive), ends - offset - nbytes
    for at in left.nonzero()[0]:
        span = slice(first[at], last[at] + 1)
        rest[span] = np.maximum(rest[span], left[at])
    return int((alive - rest).max(initial=0))


def most_alive(extents: Sequence[Extent]) -> int:
    """The bytes alive at the fullest time."""
    return int(_alive_of(extents).max(initial=0))


def _alive_of(extents: Sequence[Extent]) -> Array:
    """Bytes alive at each time."""
    _, nbytes, first, last = _columns(extents)
    return _alive(nbytes, first, last)


def _columns(extents: Sequence[Extent]) -> Array:
    """The fields of all stays: offset, bytes, first and last time [4, stays]."""
    stays = [stay for extent in extents for stay in extent.stays]
    return np.array(stays, np.int64).reshape(-1, 4).T


def _alive(amounts: Array, first: Array, last: Array) -> Array:
    """Of these amounts, each from a first to a last time, those at each time."""
    change = np.zeros(int(last.max(initial=-1)) + 2, np.int64)
    np.add.at(change, first, amounts)
    np.subtract.at(change, last + 1, amounts)
    alive: Array = np.cumsum(change)
    return alive

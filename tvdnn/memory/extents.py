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
    alive = _alive(extents)
    return [int(alive[extent.first : extent.last + 1].max()) for extent in extents]


def least_nbytes(extents: Sequence[Extent]) -> int:
    """A mark that no placement is below: what is alive at once, with the bytes between aligned.

    The base of what lies alone is aligned, and so is that of what lies above it; but of the
    uppermost, and of stays inside of an extent.
    """
    return most_alive([_rounded(extent) for extent in extents]) - (ALIGNMENT - 1)


def _rounded(extent: Extent) -> Extent:
    """The extent with its bytes, and those below it that its base may leave idle or not."""
    alone = len(extent.stays) == 1
    sizes = (aligned(s.nbytes) if alone else s.nbytes - (ALIGNMENT - 1) for s in extent.stays)
    pairs = zip(extent.stays, sizes, strict=True)
    return extent._replace(stays=tuple(stay._replace(nbytes=nbytes) for stay, nbytes in pairs))


def most_alive(extents: Sequence[Extent]) -> int:
    """The bytes alive at the fullest time."""
    return int(_alive(extents).max(initial=0))


def _alive(extents: Sequence[Extent]) -> Array:
    """Bytes alive at each time."""
    stays = np.array(
        [(s.first, s.last + 1, s.nbytes) for e in extents for s in e.stays], np.int64
    ).reshape(-1, 3)
    change = np.zeros(int(stays[:, 1].max(initial=0)) + 1, np.int64)
    np.add.at(change, stays[:, 0], stays[:, 2])
    np.subtract.at(change, stays[:, 1], stays[:, 2])
    alive: Array = np.cumsum(change)
    return alive

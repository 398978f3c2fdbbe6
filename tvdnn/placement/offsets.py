"""Bases: the aligned addresses at which an extent meets nothing that is there already.

A stay that is there while one of the extent's would be bars an open interval of bases. What is left
between such intervals are gaps, of which the first is wanted, or the one that is least too large.
Few intervals are looked at one by one, many as arrays, with the same results.
"""

from collections.abc import Sequence
from sys import maxsize
from typing import TypeAlias

import numpy as np

from .intervals import Array, Extent, Stay, aligned, all_aligned

Row: TypeAlias = tuple[int, int, int, int]  # of a stay: low and high address, first and last time


def low_base(taken: Sequence[Row], stay: Stay) -> int:
    """The lowest aligned base at which `stay` meets none of those taken, which are sorted."""
    offset, nbytes, first, last = stay
    base = 0
    for low, high, since, until in taken:
        if since <= last and until >= first:
            if low - offset - nbytes >= base:
                break
            if high - offset > base:
                base = aligned(high - offset)
    return base


def barred(taken: Sequence[Row], extent: Extent) -> list[tuple[int, int]]:
    """What `forbidden` gives, of few stays."""
    start, end = extent.first, extent.last
    near = [row for row in taken if row[2] <= end and row[3] >= start]
    return [
        (low - offset - nbytes, high - offset)
        for offset, nbytes, first, last in extent.stays
        for low, high, since, until in near
        if since <= last and until >= first
    ]


def low_gap(intervals: Sequence[tuple[int, int]]) -> int:
    """What `first_gap` gives, of few intervals."""
    base = 0
    for low, high in sorted(intervals):
        if low >= base:
            break
        if high > base:
            base = aligned(high)
    return base


def forbidden(near: Array, extent: Extent) -> tuple[Array, Array]:
    """Open intervals of base addresses at which a stay of `extent` would meet a stay in `near`."""
    rows = [(stay.offset, stay.nbytes, stay.first, stay.last) for stay in extent.stays]
    stays = np.array(rows, np.int64).T[:, :, None]  # [4, stays, 1]
    meets = (near[2] <= stays[3]) & (near[3] >= stays[2])  # [stays, near]
    return (near[0] - stays[0] - stays[1])[meets], (near[1] - stays[0])[meets]


def first_gap(lows: Array, highs: Array) -> int:
    """The lowest multiple of the alignment inside none of the open intervals (low, high)."""
    order = np.argsort(lows, kind="stable")
    return gap_between(lows[order], highs[order])


def gap_between(lows: Array, highs: Array) -> int:
    """What `first_gap` gives, of sorted intervals."""
    if lows.size == 0 or lows[0] >= 0:
        return 0
    starts = np.maximum.accumulate(all_aligned(highs))
    free = (np.maximum(starts[:-1], 0) <= lows[1:]).nonzero()[0]
    return max(0, int(starts[free[0] if free.size else -1]))


def tightest_gap(lows: Array, highs: Array) -> int:
    """The lowest multiple of the alignment in the shortest gap between the open intervals."""
    order = np.argsort(lows, kind="stable")
    lows, highs = lows[order], np.maximum.accumulate(highs[order])
    starts = np.concatenate(([0], np.maximum(0, all_aligned(highs))))
    spare = np.concatenate((lows - starts[:-1], [maxsize]))
    free = np.flatnonzero(spare >= 0)
    return int(starts[free[np.argmin(spare[free])]])

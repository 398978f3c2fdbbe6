"""Settling: base addresses for extents that would like to stay longer than they must."""

from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from .intervals import ALIGNMENT, Array, Extent, all_aligned, fullest
from .offsets import first_gap

MOST_TIMES = 8  # that one extent is driven out and placed anew
MOST_EVICTED = 2000  # after which no more is placed anew
NEVER = 1 << 60  # later than all times
FIRM = 1 << 58  # longer than any wait
EVICTING = 4.0  # times the bytes that an extent counts once it has driven others out

Amounts: TypeAlias = npt.NDArray[np.float64]


def settle(
    wanted: Sequence[Extent], firm: Sequence[Extent], room: int, turns: Sequence[int] | None = None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Base addresses below `room` (multiples of 512) in their order, and extents that find none.

    The extents are there twice, with the times at which their stays would like to have their bytes
    and, on another clock, with those at which they must. No two that must share a byte. Where two
    would like to, one waits for the other: each extent goes to the first base at which the longest
    such wait is shortest. They take `turns`, by number, or those of `in_turn`. What finds no place
    drives others out, which are placed anew some times, and then find none.
    """
    order = in_turn(wanted, firm) if turns is None else turns
    rank = {index: place for place, index in enumerate(order)}
    settled = _Settled(wanted, firm, room)
    waiting, misfits = list(range(len(order))), list[int]()
    times, left = Counter[int](), MOST_EVICTED
    while waiting:
        index = order[heappop(waiting)]
        evicted = settled.add(index)
        if evicted is None:
            misfits.append(index)
            continue
        times.update(evicted)
        left -= len(evicted)
        for other in evicted:
            if times[other] > MOST_TIMES or left < 0:
                misfits.append(other)
            else:
                heappush(waiting, rank[other])
    return tuple(settled.bases), tuple(sorted(misfits))


def in_turn(wanted: Sequence[Extent], firm: Sequence[Extent]) -> Sequence[int]:
    """The extents by number: first what must be there at the fullest time, of that by its start."""
    full = fullest(firm)
    return sorted(range(len(firm)), key=lambda i: (-full[i], wanted[i].first, -wanted[i].nbytes))


class _Settled:
    """The bases found so far, and the stays there as rows of an array.

    These are low and high address, first and last time wanted and firm, and the extent.
    """

    def __init__(self, wanted: Sequence[Extent], firm: Sequence[Extent], room: int) -> None:
        self.bases = [0] * len(wanted)
        self._wanted, self._firm, self._room = wanted, firm, room
        self._rows: Array = np.zeros((7, sum(len(each.stays) for each in wanted)), np.int64)
        self._rows[[2, 4]] = NEVER
        self._idle = list(range(self._rows.shape[1]))
        self._used: dict[int, list[int]] = {}
        self._nbytes = np.array([each.nbytes for each in wanted], np.float64)

    def add(self, index: int) -> Sequence[int] | None:
        """Place an extent; gives those that it drives out.

        None where the room is too small.
        """
        highest = (self._room - self._wanted[index].nbytes) & -ALIGNMENT
        if highest < 0:
            return None
        lows, highs, waits, owners = self._barred(index)
        base, evicted = first_gap(lows, highs), list[int]()
        if base > highest:
            bases = _candidates(lows, highs, highest)
            firm = waits >= FIRM
            must = lows[firm], highs[firm]
            free = bases[_sums(bases, *must, np.ones(len(must[0]))) == 0]
            if free.size:
                soft = ~firm
                base = int(free[_longest(free, lows[soft], highs[soft], waits[soft]).argmin()])
            else:
                base = int(bases[_sums(bases, *must, self._nbytes[owners[firm]]).argmin()])
                inside = (base > lows) & (base < highs)
                evicted = sorted(set(owners[inside & firm].tolist()))
                self._nbytes[index] *= EVICTING
        for other in evicted:
            self._drop(other)
        self._enter(index, base)
        return evicted

    def _barred(self, index: int) -> tuple[Array, Array, Array, Array]:
        """Open intervals of bases at which the extent would meet others, how long, and which."""
        found = []
        for stay, firm in zip(self._wanted[index].stays, self._firm[index].stays, strict=True):
            _, _, first, last, since, until, _ = self._rows
            wants = (first <= stay.last) & (last >= stay.first)
            must = (since <= firm.last) & (until >= firm.first)
            near = (wants | must).nonzero()[0]
            low, high, first, last, _, _, owner = self._rows[:, near]
            waits = np.minimum(last, stay.last) - np.maximum(first, stay.first) + 1
            lows, highs = low - stay.offset - stay.nbytes, high - stay.offset
            found.append((lows, highs, np.where(must[near], FIRM, waits), owner))
        lows, highs, waits, owners = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return lows, highs, waits, owners

    def _enter(self, index: int, base: int) -> None:
        self.bases[index] = base
        used = self._used[index] = []
        for stay, firm in zip(self._wanted[index].stays, self._firm[index].stays, strict=True):
            used.append(self._idle.pop())
            low = base + stay.offset
            times = stay.first, stay.last, firm.first, firm.last
            self._rows[:, used[-1]] = (low, low + stay.nbytes, *times, index)

    def _drop(self, index: int) -> None:
        used = self._used.pop(index)
        self._rows[2, used] = self._rows[4, used] = NEVER
        self._idle += used


def _candidates(lows: Array, highs: Array, highest: int) -> Array:
    """The lowest and the highest base, and those between at ends of the open intervals, in order.

    All are aligned. No other base lies in fewer of the intervals.
    """
    ends = np.unique(np.concatenate(([0, highest], all_aligned(highs), lows & -ALIGNMENT)))
    bases: Array = ends[(ends >= 0) & (ends <= highest)]
    return bases


def _sums(bases: Array, lows: Array, highs: Array, amounts: Amounts) -> Amounts:
    """By base the sum of the amounts of the open intervals (low, high) that it lies in."""
    starts, stops = bases.searchsorted(lows, "right"), bases.searchsorted(highs, "left")
    begun, ended = (np.bincount(at, amounts, 1 + len(bases)) for at in (starts, stops))
    sums: Amounts = (begun - ended)[:-1].cumsum()
    return sums


def _longest(bases: Array, lows: Array, highs: Array, waits: Array) -> Array:
    """By base the longest of the waits of the open intervals (low, high) that it lies in."""
    longest = np.zeros(len(bases), np.int64)
    starts, stops = bases.searchsorted(lows, "right"), bases.searchsorted(highs, "left")
    spans = np.stack((waits, starts, stops))[:, starts < stops].T.tolist()
    for wait, start, stop in sorted(spans):
        longest[start:stop] = wait
    return longest

"""Placement: a base address for every extent, so that no two stays share a byte at one time."""

import random
from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from sys import maxsize
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

ALIGNMENT = 512
LITTLE = 1.01  # above the bytes alive: where no room is set, less is not looked for
FEW, MANY = 3000, 12_000  # extents up to which four orders are tried, and two
FEW_STAYS = 256  # up to which looking at each is faster than at arrays
MANY_LATEST = 8  # new ones, from which all are sorted anew
FEW_MISFITS, MANY_MISFITS = 3, 12  # up to which other kinds of gaps are tried
BRIEF = 0.02  # of all times: what lasts no longer goes to the other end, if that helps

Array = npt.NDArray[np.int64]
Placed: TypeAlias = tuple[tuple[int, ...], int]


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _aligned(nbytes: Array) -> Array:
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


def place(
    extents: Sequence[Extent],
    enough: int | None = None,
    trials: int = 0,
) -> Placed:
    """Base addresses (multiples of 512) in the order of `extents`, and the high-water mark.

    Several orders are tried, each extent at the lowest address that its neighbours in time leave
    free, until the mark is at most `enough` bytes (None: what lives at once, or little above it
    where there are no trials). Then, up to `trials` times, an extent that reaches the mark is
    placed earlier, to lower it. Where more than `enough` lives at once, one order is all.
    """
    alive = _most_alive(extents)
    content = round(alive if trials else LITTLE * alive) if enough is None else enough
    best: Sequence[int] = ()
    found: Placed = ((), 0)
    for order in _orders(extents, thorough=trials > 0):
        placed = _place_in(extents, order, found[1] - 1 if best else None)
        if placed is not None:
            best, found = order, placed
        if found[1] <= content or content < alive:
            return found
    return _improved(extents, best, found, content, trials)


def shuffled(extents: Sequence[Extent], found: Placed, trials: int) -> Placed:
    """`found`, or a lower mark that one of random orders gives, up to `trials` without gain."""
    rng, order = random.Random(len(extents)), [*range(len(extents))]
    least, left = least_nbytes(extents) if trials else 0, trials
    while left and found[1] > least:
        rng.shuffle(order)
        lower = _place_in(extents, order, found[1] - 1)
        found, left = (lower, trials) if lower else (found, left - 1)
    return found


def fit(extents: Sequence[Extent], room: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Base addresses below `room` as `place` gives them, and the extents that find none.

    Each extent goes by its start into the first gap; if not many are left out then what is brief
    goes into the last, and if few are then all go into the gap that is least too large, should that
    leave out fewer. The base of one that finds no place is 0.
    """
    found = _fit_in(extents, room)
    if 0 < len(found[1]) <= MANY_MISFITS:
        brief = round(BRIEF * max(extent.last for extent in extents))
        found = min(found, _fit_in(extents, room, brief=brief), key=_misfits) if brief else found
    if 0 < len(found[1]) <= FEW_MISFITS:
        found = min(found, _fit_in(extents, room, tight=True), key=_misfits)
    return found


def _misfits(found: tuple[tuple[int, ...], tuple[int, ...]]) -> int:
    return len(found[1])


def _fit_in(
    extents: Sequence[Extent], room: int, *, tight: bool = False, brief: int = 0
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What `fit` finds, in the first gaps or in `tight` ones; in the last for what is `brief`."""
    bases, misfits = [0] * len(extents), list[int]()
    taken = _TakenByStart(sum(len(e.stays) for e in extents), tight=tight)
    for index in _by_start(extents):
        extent = extents[index]
        highest = extent.last - extent.first < brief and len(extent.stays) == 1
        base = taken.top_base(extent, room) if highest else taken.base(extent)
        if base + extents[index].nbytes > room:
            misfits.append(index)
        else:
            bases[index] = base
            taken.add(extents[index], base)
    return tuple(bases), tuple(misfits)


def _by_start(extents: Sequence[Extent]) -> list[int]:
    return sorted(range(len(extents)), key=lambda i: (extents[i].first, -extents[i].nbytes))


def _orders(extents: Sequence[Extent], *, thorough: bool) -> Iterator[Sequence[int]]:
    """Orders that pack well: by start, then those that place first what lives at the fullest time.

    Of many extents the latter take long: they are tried up to a number, of more if `thorough`.

    Of thirty schedules of VGG-16, (fullest, start) gave the tightest packing for seventeen.
    """
    numbers = range(len(extents))
    yield _by_start(extents)
    if len(extents) > (MANY if thorough else FEW):
        return
    full = fullest(extents)
    yield sorted(numbers, key=lambda i: (-full[i], extents[i].first))
    if len(extents) <= FEW:
        yield sorted(numbers, key=lambda i: (-full[i], -extents[i].nbytes))
        yield sorted(numbers, key=lambda i: (-extents[i].nbytes, extents[i].first))


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


def _most_alive(extents: Sequence[Extent]) -> int:
    return int(_alive(extents).max(initial=0))


def least_nbytes(extents: Sequence[Extent]) -> int:
    """A mark that no placement is below: what is alive at once, with the bytes between aligned.

    The base of what lies alone is aligned, and so is that of what lies above it; but of the
    uppermost, and of stays inside of an extent.
    """
    return _most_alive([_rounded(extent) for extent in extents]) - (ALIGNMENT - 1)


def _rounded(extent: Extent) -> Extent:
    """The extent with its bytes, and those below it that its base may leave idle or not."""
    alone = len(extent.stays) == 1
    sizes = (aligned(s.nbytes) if alone else s.nbytes - (ALIGNMENT - 1) for s in extent.stays)
    pairs = zip(extent.stays, sizes, strict=True)
    return extent._replace(stays=tuple(stay._replace(nbytes=nbytes) for stay, nbytes in pairs))


def fullest(extents: Sequence[Extent]) -> list[int]:
    """By extent, the bytes alive at the fullest time of its span."""
    alive = _alive(extents)
    return [int(alive[extent.first : extent.last + 1].max()) for extent in extents]


def _improved(
    extents: Sequence[Extent], order: Sequence[int], found: Placed, enough: int, trials: int
) -> Placed:
    """`found`, or a lower mark by placing what reaches the mark ahead of one it meets in time."""
    rng = random.Random(len(extents))
    for _ in range(trials):
        bases, mark = found
        if mark <= enough:
            break
        top = next(i for i in order if bases[i] + extents[i].nbytes == mark)
        at = order.index(top)
        met = [place for place in range(at) if _meet(extents[order[place]], extents[top])]
        if not met:
            break
        ahead = met[0] if rng.random() < 0.5 else rng.choice(met)
        trial = (*order[:ahead], top, *order[ahead:at], *order[at + 1 :])
        placed = _place_again(extents, trial, found, ahead)
        if placed is not None:
            order, found = trial, placed
    return found


def _meet(one: Extent, other: Extent) -> bool:
    return one.first <= other.last and other.first <= one.last


def _place_in(
    extents: Sequence[Extent], order: Sequence[int], limit: int | None = None
) -> Placed | None:
    """Bases and mark of the extents placed in `order`; None where the mark passes `limit`."""
    bases = [0] * len(extents)
    by_start = all(extents[a].first <= extents[b].first for a, b in pairwise(order))
    taken = (_TakenByStart if by_start else _Taken)(sum(len(e.stays) for e in extents))
    for index in order:
        extent = extents[index]
        bases[index] = taken.base(extent)
        taken.add(extent, bases[index])
        if limit is not None and taken.high_water > limit:
            return None
    return tuple(bases), taken.high_water


def _place_again(
    extents: Sequence[Extent], order: Sequence[int], found: Placed, ahead: int
) -> Placed | None:
    """What `_place_in` gives of `order`, after `found` where what is now at `ahead` came later.

    None where the mark passes that of `found`. An extent stays where it was unless one placed
    before that it meets in time is elsewhere than it was. So it may leave a hole between its own
    stays below another that came by its start.
    """
    bases, limit = list(found[0]), found[1]
    elsewhere = bytearray(1 + max(extent.last for extent in extents))  # by time, whether any is
    taken = _Taken(sum(len(e.stays) for e in extents))
    for place, index in enumerate(order):
        extent = extents[index]
        span = slice(extent.first, extent.last + 1)
        if place == ahead or 1 in elsewhere[span]:
            base = taken.base(extent)
            if place == ahead or base != bases[index]:
                elsewhere[span] = b"\1" * (extent.last + 1 - extent.first)
            bases[index] = base
        taken.add(extent, bases[index])
        if taken.high_water > limit:
            return None
    return tuple(bases), taken.high_water


def _occupied(extent: Extent, base: int) -> Iterator[tuple[int, int, int, int]]:
    """Low and high address, first and last time of each stay."""
    for offset, nbytes, first, last in extent.stays:
        yield base + offset, base + offset + nbytes, first, last


class _Taken:
    """The stays placed so far by their low addresses: as parallel arrays, if few as a list."""

    def __init__(self, capacity: int, *, tight: bool = False) -> None:
        self.high_water = 0
        self._tight = tight
        self._few = capacity <= FEW_STAYS
        self._lows: list[int] = []
        self._stays: list[tuple[int, int, int, int]] = []  # low, high, first, last
        self._rows: Array = np.zeros((4, max(1, capacity)), np.int64)
        self._latest: list[tuple[int, int, int, int]] = []

    def add(self, extent: Extent, base: int) -> None:
        self._latest += _occupied(extent, base)
        self.high_water = max(self.high_water, base + extent.nbytes)

    def base(self, extent: Extent) -> int:
        """An aligned base at which no stay of `extent` meets one placed before."""
        alone = len(extent.stays) == 1 and not self._tight
        if self._few:
            stays = self._listed()
            if alone:
                return _low_base(stays, extent.stays[0])
            barred = _barred(stays, extent)
            if not self._tight or not barred:
                return _low_gap(barred)
            return _tightest_gap(*np.array(barred, np.int64).T)
        rows = self._entered()
        near = ((rows[2] <= extent.last) & (rows[3] >= extent.first)).nonzero()[0]
        if near.size == 0:
            return 0
        if alone:
            stay = extent.stays[0]
            lows = rows[0].take(near) - (stay.offset + stay.nbytes)
            return _gap_between(lows, rows[1].take(near) - stay.offset)
        rows = rows.take(near, 1)
        return (_tightest_gap if self._tight else first_gap)(*_forbidden(rows, extent))

    def _listed(self) -> list[tuple[int, int, int, int]]:
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


class _TakenByStart(_Taken):
    """The stays placed so far, where none begins before the extents placed earlier do.

    So an extent whose stays begin together meets what is there by then, and stays to come of
    extents placed before: it goes into a gap between the former. Twenty times as fast for ten
    thousand layers.
    """

    def __init__(self, capacity: int, *, tight: bool = False) -> None:
        super().__init__(capacity, tight=tight)
        self._gaps = _Gaps()
        self._present: list[tuple[int, int, int]] = []  # last, low, high: a heap
        self._coming: list[tuple[int, int, int, int]] = []  # first, last, low, high: a heap
        self._next_prune = 256

    def add(self, extent: Extent, base: int) -> None:
        super().add(extent, base)
        for low, high, first, last in _occupied(extent, base):
            heappush(self._coming, (first, last, low, high))

    def base(self, extent: Extent) -> int:
        self._go_to(extent.first)
        if len(extent.stays) > 1 and any(stay.first > extent.first for stay in extent.stays):
            self._forget_before(extent.first)
            return super().base(extent)
        barred = sorted(
            (low - stay.offset - stay.nbytes, high - stay.offset)
            for first, _, low, high in self._coming
            for stay in extent.stays
            if first <= stay.last
        )
        bases = self._gaps.bases(extent.nbytes, barred)
        return min(bases)[1] if self._tight else next(bases)[1]

    def top_base(self, extent: Extent, room: int) -> int:
        """As `base`, of one stay that begins last, in the last gap below `room`; else above."""
        self._go_to(extent.first)
        barred = [
            (low - extent.nbytes, high)
            for first, _, low, high in self._coming
            if first <= extent.last
        ]
        return self._gaps.top_base(extent.nbytes, sorted(barred, reverse=True), room)

    def _go_to(self, time: int) -> None:
        """Let what begins and ends up to `time` take its bytes and free them."""
        while self._coming and self._coming[0][0] <= time:
            first, last, low, high = heappop(self._coming)
            self._end_before(first)
            self._gaps.take(low, high)
            heappush(self._present, (last, low, high))
        self._end_before(time)

    def _end_before(self, time: int) -> None:
        while self._present and self._present[0][0] < time:
            _, low, high = heappop(self._present)
            self._gaps.free(low, high)

    def _forget_before(self, time: int) -> None:
        """Drop stays that ended before `time`, now and then."""
        if self._few:
            return
        rows = self._entered()
        if rows.shape[1] < self._next_prune:
            return
        self._enter(rows[:, rows[3] >= time])
        self._next_prune = 2 * len(self._lows) + 256


class _Gaps:
    """Free bytes as gaps [low, high) in the order of their addresses; the last has no end."""

    def __init__(self) -> None:
        self._lows, self._highs = [0], [maxsize]

    def bases(self, nbytes: int, barred: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """By gap the bytes too many for `nbytes`, and the lowest aligned base in it.

        The base is inside none of the `barred` intervals, which are open and sorted.
        """
        for low, high in zip(self._lows, self._highs, strict=True):
            if high - low < nbytes:
                continue
            base = aligned(low)
            for start, stop in barred:
                if start < base < stop:
                    base = aligned(stop)
            if base + nbytes <= high:
                yield high - low - nbytes, base

    def top_base(self, nbytes: int, barred: Sequence[tuple[int, int]], room: int) -> int:
        """The highest aligned base below `room`, which is inside none of these; `room` if none is.

        They are open, and sorted from the last.
        """
        for low, high in zip(reversed(self._lows), reversed(self._highs), strict=True):
            base = (min(high, room) - nbytes) & -ALIGNMENT
            for start, stop in barred:
                if start < base < stop:
                    base = start & -ALIGNMENT
            if base >= low:
                return base
        return room

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

    def free(self, low: int, high: int) -> None:
        """Give bytes [low, high) back."""
        first = last = bisect_right(self._lows, low)
        if first and self._highs[first - 1] == low:
            first -= 1
            low = self._lows[first]
        if self._lows[last] == high:
            high = self._highs[last]
            last += 1
        self._lows[first:last], self._highs[first:last] = [low], [high]


def _barred(taken: Sequence[tuple[int, int, int, int]], extent: Extent) -> list[tuple[int, int]]:
    """What `_forbidden` gives, of few stays."""
    return [
        (low - offset - nbytes, high - offset)
        for offset, nbytes, first, last in extent.stays
        for low, high, since, until in taken
        if since <= last and until >= first
    ]


def _low_base(taken: Sequence[tuple[int, int, int, int]], stay: Stay) -> int:
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


def _low_gap(barred: list[tuple[int, int]]) -> int:
    """What `first_gap` gives, of few intervals."""
    base = 0
    for low, high in sorted(barred):
        if low >= base:
            break
        if high > base:
            base = aligned(high)
    return base


def _forbidden(near: Array, extent: Extent) -> tuple[Array, Array]:
    """Open intervals of base addresses at which a stay of `extent` would meet a stay in `near`."""
    rows = [(stay.offset, stay.nbytes, stay.first, stay.last) for stay in extent.stays]
    stays = np.array(rows, np.int64).T[:, :, None]  # [4, stays, 1]
    meets = (near[2] <= stays[3]) & (near[3] >= stays[2])  # [stays, near]
    return (near[0] - stays[0] - stays[1])[meets], (near[1] - stays[0])[meets]


def first_gap(lows: Array, highs: Array) -> int:
    """The lowest multiple of the alignment inside none of the open intervals (low, high)."""
    order = np.argsort(lows, kind="stable")
    return _gap_between(lows[order], highs[order])


def _gap_between(lows: Array, highs: Array) -> int:
    """What `first_gap` gives, of sorted intervals."""
    if lows.size == 0 or lows[0] >= 0:
        return 0
    starts = np.maximum.accumulate(_aligned(highs))
    free = (np.maximum(starts[:-1], 0) <= lows[1:]).nonzero()[0]
    return max(0, int(starts[free[0] if free.size else -1]))


def _tightest_gap(lows: Array, highs: Array) -> int:
    """The lowest multiple of the alignment in the shortest gap between the open intervals."""
    order = np.argsort(lows, kind="stable")
    lows, highs = lows[order], np.maximum.accumulate(highs[order])
    starts = np.concatenate(([0], np.maximum(0, _aligned(highs))))
    spare = np.concatenate((lows - starts[:-1], [maxsize]))
    free = np.flatnonzero(spare >= 0)
    return int(starts[free[np.argmin(spare[free])]])

"""Placement: a base address for every extent, so that no two stays share a byte at one time.

Extents go one after the other to the lowest address that is free as long as they last. How high
that reaches is up to their order: several are tried, and the best is changed where it is highest.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

from .first_fit import Taken
from .intervals import Extent, by_start, fullest, least_nbytes, most_alive
from .sweep_first_fit import TakenByStart

LITTLE = 1.01  # above the bytes alive: where no room is set, less is not looked for
FEW, MANY = 3000, 12_000  # extents up to which four orders are tried, and two

Placed: TypeAlias = tuple[tuple[int, ...], int]


def place(
    extents: Sequence[Extent],
    enough: int | None = None,
    trials: int = 0,
) -> Placed:
    """Base addresses (multiples of 512) in the order of `extents`, and the high-water mark.

    Several orders are tried, each extent at the lowest address that its neighbours in time leave
    free, until the mark is at most `enough` bytes (None: the least that is possible, or little
    above what lives at once where there are no trials). Then, up to `trials` times, an extent that
    reaches the mark is placed earlier, to lower it. Where more than `enough` lives at once, one
    order is all.
    """
    alive = most_alive(extents)
    if enough is not None:
        content = enough
    else:
        content = max(alive, least_nbytes(extents)) if trials else round(LITTLE * alive)
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


def _orders(extents: Sequence[Extent], *, thorough: bool) -> Iterator[Sequence[int]]:
    """Orders that pack well: by start, then those that place first what lives at the fullest time.

    Of many extents the latter take long: they are tried up to a number, of more if `thorough`.

    Of thirty schedules of VGG-16, (fullest, start) gave the tightest packing for seventeen.
    """
    numbers = range(len(extents))
    yield by_start(extents)
    if len(extents) > (MANY if thorough else FEW):
        return
    full = fullest(extents)
    yield sorted(numbers, key=lambda i: (-full[i], extents[i].first))
    if len(extents) <= FEW:
        yield sorted(numbers, key=lambda i: (-full[i], -extents[i].nbytes))
        yield sorted(numbers, key=lambda i: (-extents[i].nbytes, extents[i].first))


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
    in_time = all(extents[a].first <= extents[b].first for a, b in pairwise(order))
    taken = (TakenByStart if in_time else Taken)(sum(len(e.stays) for e in extents))
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
    taken = Taken(sum(len(e.stays) for e in extents))
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

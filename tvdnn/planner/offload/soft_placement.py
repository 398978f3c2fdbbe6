"""Soft placement: offsets first, then an order of steps in which a residency waits for its place.

A list scheduler counts bytes. These may be few enough and yet find no place where launches want
sections side by side. Here each residency has its address before the order is made. By its launches
it shares no byte with another. Where a copy would have two in one place, the later one waits.
"""

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeAlias

import numpy as np

from ...placement import assign_offsets_soft, placement_priority
from ..ir.costs import Costs
from ..lowering.arena_layout import ArenaLayout
from ..lowering.launch_limits import FragmentationError
from ..lowering.lifetimes import groups_over
from ..lowering.list_scheduler import Item, ListScheduler
from ..lowering.program import NONE, Program
from ..lowering.timetable import Timetable

NANOSECONDS = 1e9
OVERTAKEN = 8  # waiting prefetches that one with a free place may overtake, at most
SHUFFLED, LEAST_SHUFFLED = 10, 4  # one group in so many changes its turn, but no fewer

Placed: TypeAlias = tuple[Timetable, ArenaLayout]


class SoftPlacement:
    """Offsets below `capacity` bytes for the residencies of an order, which follows them then.

    Preferred lifetimes are those that the order predicts. Launches and offloads keep their order.
    """

    def __init__(self, steps: Timetable, costs: Costs, capacity: int) -> None:
        self._program, self._costs, self._capacity = steps.program, costs, capacity
        lives = steps.program.intervals
        begins = [round(NANOSECONDS * begin_s) for begin_s in steps.begins]
        ends_s = (
            steps.seconds if live.pinned_to_phase_end else end_s
            for live, end_s in zip(lives, steps.ends, strict=True)
        )
        ends = [
            max(begin, round(NANOSECONDS * end_s) - 1)
            for begin, end_s in zip(begins, ends_s, strict=True)
        ]
        firsts, lasts = zip(*((live.first, live.last) for live in lives), strict=True)
        self._preferred = groups_over(steps.program, begins, ends)
        self._required = groups_over(steps.program, firsts, lasts)

    def placed(self, priority: Sequence[int] | None = None) -> Placed:
        """The steps with the offsets that groups find in this order.

        Raises FragmentationError where bytes find no place.
        """
        groups = self._preferred, self._required
        offsets, unplaced = assign_offsets_soft(*groups, self._capacity, priority)
        if unplaced:
            left = [self._required[at] for at in unplaced]
            raise FragmentationError(tuple((each.first, each.last, each.nbytes) for each in left))
        arena = ArenaLayout.of(self._program, self._preferred, offsets)
        before = _before(self._program, arena.addresses)
        scheduler = _PlacedScheduler(self._program, self._costs, before)
        return Timetable.from_scheduler(scheduler), arena

    def retried(self, tries: int) -> Placed | None:
        """The fastest steps of so many tries with offsets in other orders; None if none fits.

        Each try shuffles some groups that follow each other in the best order so far.
        """
        priority = list(placement_priority(self._preferred, self._required))
        best, rng = None, random.Random(len(priority))
        for number in range(tries):
            trial = _shuffled(priority, rng) if number else priority
            try:
                found = self.placed(trial)
            except FragmentationError:
                continue
            if best is None or found[0].seconds < best[0].seconds:
                priority, best = trial, found
        return best


def _shuffled(priority: list[int], rng: random.Random) -> list[int]:
    """The groups with some that follow each other in a random order."""
    start = rng.randrange(len(priority))
    stop = start + max(LEAST_SHUFFLED, len(priority) // SHUFFLED)
    others = priority[start:stop]
    rng.shuffle(others)
    return [*priority[:start], *others, *priority[stop:]]


def _before(prog: Program, addresses: Sequence[int]) -> list[set[int]]:
    """By residency, those that held its bytes last before it."""
    before: list[set[int]] = [set() for _ in addresses]
    lows, owners = [0], [NONE]
    lives = prog.intervals
    for number in sorted(range(len(lives)), key=lambda n: lives[n].first):
        low, high = addresses[number], addresses[number] + lives[number].nbytes
        first, last = bisect_right(lows, low) - 1, bisect_right(lows, high - 1)
        before[number] = set(owners[first:last]) - {NONE}
        cut = [(lows[first], owners[first])] if lows[first] < low else []
        cut.append((low, number))
        if last == len(lows) or lows[last] > high:
            cut.append((high, owners[last - 1]))
        lows[first:last] = [address for address, _ in cut]
        owners[first:last] = [owner for _, owner in cut]
    return before


class _PlacedScheduler(ListScheduler):
    """A scheduler that counts no bytes: a residency waits for those before it in its place."""

    def __init__(self, program: Program, costs: Costs, before: Sequence[set[int]]) -> None:
        none = np.zeros(len(program.launches), np.int64)
        super().__init__(program, costs, none, none.copy(), [0] * len(before))
        self._before = before

    def _wait_for_bytes(self, index: int) -> Iterator[Item]:
        for number in self._starting[index]:
            if not self.program.intervals[number].is_prefetched:
                yield from self._wait_for_place(number)

    def _wait_for_offload(self, number: int) -> Iterator[Item]:
        yield from super()._wait_for_offload(number)
        yield from self._wait_for_place(number)

    def _wait_for_place(self, number: int) -> Iterator[Item]:
        while not self._before[number] <= self._freed:
            yield from self._finish_oldest()

    def _prefetch_ahead(self, index: int) -> Iterator[Item]:
        """Issue prefetches that would start during launch `index`, in places that are free."""
        end_s = self._start_s(index) + self._seconds[index]
        while any(self._free_s[lane] < end_s for lane in self._near_back):
            following = islice(self._queue, 1 + OVERTAKEN)
            number = next((each for each in following if self._may_come(index, each)), NONE)
            if number == NONE or self._prefetch_start_s(number) >= end_s:
                return
            self._queue.remove(number)
            yield from self._prefetch(number)

    def _may_come(self, index: int, number: int) -> bool:
        opens = self.program.intervals[number].earliest_prefetch
        return opens <= index and self._has_left(number) and self._before[number] <= self._freed

    def _earliest_s(self, number: int) -> float:
        freed_s = max((self.ends[other] for other in self._before[number]), default=0.0)
        return max(freed_s, super()._earliest_s(number))

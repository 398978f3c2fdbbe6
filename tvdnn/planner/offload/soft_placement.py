"""Places: an order of steps in which what begins waits until its place is free.

A list scheduler counts bytes, which may be few enough and yet find no place where launches want
sections side by side. Here each residency has its address before the order is made. By its launches
alone it shares no byte with another; but copies take their time, and where that would have two in
one place, the later one waits.
"""

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import numpy as np

from ...graph import Graph
from ...placement import AllocationGroup, assign_offsets_soft, placement_priority
from ..ir.costs import Costs
from ..lowering.arena import ArenaLayout
from ..lowering.lifetimes import groups_over
from ..lowering.limits import FragmentationError
from ..lowering.list_scheduler import Item, ListScheduler
from ..lowering.program import NONE, Program, contiguous_groups
from ..lowering.timetable import Timetable

NANOSECONDS = 1e9
OVERTAKEN = 8  # copies back that wait for their places, at most, by one that need not
SHUFFLED, LEAST_SHUFFLED = 10, 4  # one extent in so many takes another turn, of few extents more

Settled: TypeAlias = tuple[Timetable, ArenaLayout]


def settled(graph: Graph, steps: Timetable, costs: Costs, room: int) -> Settled:
    """The steps in places below `room` bytes, their launches and copies out in the order of these.

    Wanted are the times that the steps' order predicts. Raises FragmentationError where bytes find
    no place.

    """
    return _Wishes.of(graph, steps, costs, room).settled()


def resettled(
    graph: Graph, steps: Timetable, costs: Costs, room: int, *, tries: int
) -> Settled | None:
    """The steps in the places, of so many tries, by which they take least; None if none fits.

    Once all have places, extents that had them one after another take turns at random: another
    order leaves other bytes idle between them. It is kept if the steps take less.
    """
    wishes = _Wishes.of(graph, steps, costs, room)
    turns, best = list(placement_priority(wishes.wanted, wishes.firm)), None
    rng = random.Random(len(turns))
    for number in range(tries):
        trial = _shuffled(turns, rng) if number else turns
        try:
            found = wishes.settled(trial)
        except FragmentationError:
            continue
        if best is None or found[0].seconds < best[0].seconds:
            turns, best = trial, found
    return best


def _shuffled(turns: list[int], rng: random.Random) -> list[int]:
    """The turns with some that follow each other, anywhere, in a random order."""
    start = rng.randrange(len(turns))
    stop = start + max(LEAST_SHUFFLED, len(turns) // SHUFFLED)
    others = turns[start:stop]
    rng.shuffle(others)
    return [*turns[:start], *others, *turns[stop:]]


@dataclass(frozen=True, slots=True)
class _Wishes:
    """Extents of an order's stays, when these would like to have their bytes and when they must."""

    graph: Graph
    steps: Timetable
    costs: Costs
    room: int
    groups: Sequence[Sequence[int]]
    wanted: Sequence[AllocationGroup]
    firm: Sequence[AllocationGroup]

    @classmethod
    def of(cls, graph: Graph, steps: Timetable, costs: Costs, room: int) -> "_Wishes":
        prog = steps.program
        groups = contiguous_groups(prog)
        begins = [round(NANOSECONDS * begin_s) for begin_s in steps.begins]
        ends = [
            max(
                begin,
                round(NANOSECONDS * (steps.seconds if stay.pinned_to_phase_end else end_s)) - 1,
            )
            for stay, begin, end_s in zip(prog.intervals, begins, steps.ends, strict=True)
        ]
        firsts, lasts = zip(*((stay.first, stay.last) for stay in prog.intervals), strict=True)
        wanted = groups_over(graph, prog, groups, begins, ends)
        firm = groups_over(graph, prog, groups, firsts, lasts)
        return cls(graph, steps, costs, room, groups, wanted, firm)

    def settled(self, turns: Sequence[int] | None = None) -> Settled:
        """The steps in places that the extents find in these turns. Raises FragmentationError."""
        bases, misfits = assign_offsets_soft(self.wanted, self.firm, self.room, turns)
        if misfits:
            crowded = [self.firm[at] for at in misfits]
            raise FragmentationError(
                tuple((each.first, each.last, each.nbytes) for each in crowded)
            )
        arena = ArenaLayout.of(self.groups, self.wanted, bases)
        prog, before = self.steps.program, _before(self.steps.program, arena.addresses)
        scheduler = _InPlaces(self.graph, prog, self.costs, before)
        return Timetable.from_scheduler(scheduler, self.steps.plan, prog), arena


def _before(prog: Program, addresses: Sequence[int]) -> list[set[int]]:
    """By residency those that have its bytes last before it does."""
    before: list[set[int]] = [set() for _ in addresses]
    lows, owners = [0], [NONE]
    stays = prog.intervals
    for number in sorted(range(len(stays)), key=lambda n: stays[n].first):
        low, high = addresses[number], addresses[number] + stays[number].nbytes
        first, last = bisect_right(lows, low) - 1, bisect_right(lows, high - 1)
        before[number] = set(owners[first:last]) - {NONE}
        cut = [(lows[first], owners[first])] if lows[first] < low else []
        cut.append((low, number))
        if last == len(lows) or lows[last] > high:
            cut.append((high, owners[last - 1]))
        lows[first:last] = [address for address, _ in cut]
        owners[first:last] = [owner for _, owner in cut]
    return before


class _InPlaces(ListScheduler):
    """A scheduler that counts no bytes: what begins waits for those before it in its place."""

    def __init__(
        self, graph: Graph, program: Program, costs: Costs, before: Sequence[set[int]]
    ) -> None:
        none = np.zeros(len(program.launches), np.int64)
        super().__init__(graph, program, costs, none, none.copy(), [0] * len(before))
        self._before = before

    def _wait_for_bytes(self, index: int) -> Iterator[Item]:
        for number in self._starting[index]:
            if not self._program.intervals[number].is_prefetched:
                yield from self._wait_for_place(number)

    def _wait_for_offload(self, number: int) -> Iterator[Item]:
        yield from super()._wait_for_offload(number)
        yield from self._wait_for_place(number)

    def _wait_for_place(self, number: int) -> Iterator[Item]:
        while not self._before[number] <= self._freed:
            yield self._finish_oldest()

    def _prefetch_ahead(self, index: int) -> Iterator[Item]:
        """Issue prefetches that would start during launch `index`, in places that are free."""
        end_s = self._start_s(index) + self._seconds[index]
        while self._prefetch_s < end_s:
            following = islice(self._queue, 1 + OVERTAKEN)
            number = next((each for each in following if self._may_come(index, each)), NONE)
            if number == NONE:
                return
            self._queue.remove(number)
            yield self._prefetch(number)

    def _may_come(self, index: int, number: int) -> bool:
        opens = self._program.intervals[number].earliest_prefetch
        return opens <= index and self._has_left(number) and self._before[number] <= self._freed

    def _earliest_s(self, number: int) -> float:
        freed_s = max((self.ends[other] for other in self._before[number]), default=0.0)
        return max(freed_s, super()._earliest_s(number))

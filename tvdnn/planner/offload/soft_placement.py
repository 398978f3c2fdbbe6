"""Soft placement: offsets first, then an order of steps in which a residency waits for its place.

A list scheduler counts bytes. These may be few enough and yet find no place where launches want
sections side by side. Here each residency has its address before the order is made. By its launches
it shares no byte with another. Where a copy would have two in one place, the later one waits.
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
OVERTAKEN = 8  # waiting prefetches that one with a free place may overtake, at most
SHUFFLED, LEAST_SHUFFLED = 10, 4  # one extent in so many changes its turn, but no fewer

Placed: TypeAlias = tuple[Timetable, ArenaLayout]


def placed_before_ordering(graph: Graph, steps: Timetable, costs: Costs, room: int) -> Placed:
    """The steps with offsets below `room` bytes, their launches and offloads in the same order.

    Preferred lifetimes are those that the order predicts. Raises FragmentationError where bytes
    find no place.
    """
    return _Lifetimes.of(graph, steps, costs, room).placed_before_ordering()


def retried(
    graph: Graph, steps: Timetable, costs: Costs, room: int, *, tries: int
) -> Placed | None:
    """The fastest steps of so many tries with offsets assigned in other orders; None if none fits.

    Each try shuffles some extents that follow each other in the best order so far.
    """
    lifetimes = _Lifetimes.of(graph, steps, costs, room)
    turns, best = list(placement_priority(lifetimes.preferred, lifetimes.required)), None
    rng = random.Random(len(turns))
    for number in range(tries):
        trial = _shuffled(turns, rng) if number else turns
        try:
            found = lifetimes.placed_before_ordering(trial)
        except FragmentationError:
            continue
        if best is None or found[0].seconds < best[0].seconds:
            turns, best = trial, found
    return best


def _shuffled(turns: list[int], rng: random.Random) -> list[int]:
    """The turns with some that follow each other in a random order."""
    start = rng.randrange(len(turns))
    stop = start + max(LEAST_SHUFFLED, len(turns) // SHUFFLED)
    others = turns[start:stop]
    rng.shuffle(others)
    return [*turns[:start], *others, *turns[stop:]]


@dataclass(frozen=True, slots=True)
class _Lifetimes:
    """Extents of an order's residencies, by their preferred and by their required lifetimes."""

    graph: Graph
    steps: Timetable
    costs: Costs
    room: int
    groups: Sequence[Sequence[int]]
    preferred: Sequence[AllocationGroup]
    required: Sequence[AllocationGroup]

    @classmethod
    def of(cls, graph: Graph, steps: Timetable, costs: Costs, room: int) -> "_Lifetimes":
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
        preferred = groups_over(graph, prog, groups, begins, ends)
        required = groups_over(graph, prog, groups, firsts, lasts)
        return cls(graph, steps, costs, room, groups, preferred, required)

    def placed_before_ordering(self, turns: Sequence[int] | None = None) -> Placed:
        """The steps with the offsets that groups find in this order. Raises FragmentationError."""
        bases, misfits = assign_offsets_soft(self.preferred, self.required, self.room, turns)
        if misfits:
            crowded = [self.required[at] for at in misfits]
            raise FragmentationError(
                tuple((each.first, each.last, each.nbytes) for each in crowded)
            )
        arena = ArenaLayout.of(self.groups, self.preferred, bases)
        prog, before = self.steps.program, _before(self.steps.program, arena.addresses)
        scheduler = _PlacedScheduler(self.graph, prog, self.costs, before)
        return Timetable.from_scheduler(scheduler, self.steps.plan, prog), arena


def _before(prog: Program, addresses: Sequence[int]) -> list[set[int]]:
    """By residency, those that held its bytes last before it."""
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


class _PlacedScheduler(ListScheduler):
    """A scheduler that counts no bytes: a residency waits for those before it in its place."""

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

"""List scheduler: launches and copies in one order with live bytes below a limit.

The scheduler follows predicted time. Launches keep the plan's order. An offload comes where its
copy ends, or earlier where a launch must wait for its bytes. A prefetch comes before the launch
during which it starts, if all launches up to its use still have the bytes that they require.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from sys import maxsize
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..ir.costs import Costs
from ..ir.schedule import COPY_LANES, LAUNCH_LANES, Lane
from .program import NONE, Program


class Item(NamedTuple):
    """One item of a timetable: a launch by its index, or the copy of a live interval by number."""

    lane: Lane
    number: int

    @property
    def is_launch(self) -> bool:
        return self.lane in LAUNCH_LANES


class CapacityError(Exception):
    """A launch requires more live bytes than its limit."""


def required_nbytes(program: Program, sizes: Iterable[int] | None = None) -> npt.NDArray[np.int64]:
    """The bytes that each launch requires on the device, whatever is copied [launches].

    `sizes` are the bytes that each live interval counts as, by default its own.
    """
    sizes = (live.nbytes for live in program.intervals) if sizes is None else sizes
    change = np.zeros(len(program.launches) + 1, np.int64)
    for live, nbytes in zip(program.intervals, sizes, strict=True):
        change[live.first] += nbytes
        change[live.last + 1] -= nbytes
    return np.cumsum(change)[:-1]


class ListScheduler:
    """Predicted clocks of the lanes, live bytes, and bytes reserved for later launches.

    `limits` are the most live bytes by launch, `required` the result of `required_nbytes`, `sizes`
    the bytes that each live interval counts as. `begins` and `ends` are the seconds at which each
    live interval takes and frees its bytes. A `patient` scheduler knows that a prefetch that waited
    for bytes starts no earlier than these are free. Its predictions are better, and it issues fewer
    prefetches ahead.
    """

    def __init__(
        self,
        program: Program,
        costs: Costs,
        limits: npt.NDArray[np.int64],
        required: npt.NDArray[np.int64],
        sizes: list[int],
        *,
        patient: bool = False,
    ) -> None:
        self.program = program
        self._patient = patient
        self._costs = costs
        self._limits = limits
        self._reserved = required
        self._sizes = sizes
        self._seconds = program.launch_seconds(costs)
        self._ends = [0.0] * len(program.launches)
        self._compute_s = 0.0
        # By lane, the end of its last copy, or sum over processes.
        self._free_s = dict.fromkeys((*COPY_LANES, Lane.REDUCE), 0.0)
        self._live = 0
        # By the lane that they leave the device on, offloads: end in seconds, interval.
        self._pending: dict[Lane, deque[tuple[float, int]]] = {}
        self._landed: dict[int, float] = {}  # by offloaded interval, the second it is in its tier
        self._arrival: dict[int, float] = {}
        self._freed: set[int] = set()
        self._delayed = NONE  # the next prefetch, if its bytes did not fit before
        self.begins = [0.0] * len(sizes)
        self.ends = [0.0] * len(sizes)
        self._starting: list[list[int]] = [[] for _ in program.launches]
        self._ending: list[list[int]] = [[] for _ in program.launches]
        for number, live in enumerate(program.intervals):
            self._starting[live.first].append(number)
            self._ending[live.last].append(number)
        lives = program.intervals
        self._near_back = {
            program.route_back(number)[-1].back
            for number, live in enumerate(lives)
            if live.is_prefetched
        }
        self._queue = deque(n for ns in self._starting for n in ns if lives[n].is_prefetched)

    def run(self) -> Iterator[Item]:
        """The items in their order. A scheduler runs once."""
        for index, launch in enumerate(self.program.launches):
            boundary = index > 0 and launch.segment != self.program.launches[index - 1].segment
            if index == self.program.phase_split or (self.program.plan.sync and boundary):
                yield from self._finish_copies()
            yield from self._free_ended_offloads()
            yield from self._wait_for_bytes(index)
            yield from self._prefetch_needed(index)
            yield from self._prefetch_ahead(index)
            self._launch(index)
            yield Item(self.program.lane_of(index), index)
            self._release(index)
        yield from self._finish_copies()

    @property
    def end_s(self) -> float:
        """The end of the last launch or copy, in seconds."""
        return max(self._compute_s, *self._free_s.values())

    @property
    def compute_s(self) -> float:
        """The seconds of all launches."""
        return sum(self._seconds)

    def _finish_copies(self) -> Iterator[Item]:
        while self._oldest() is not None:
            yield from self._finish_oldest()
        self._compute_s = max(self._compute_s, *(self._free_s[lane] for lane in COPY_LANES))

    def _free_ended_offloads(self) -> Iterator[Item]:
        while (oldest := self._oldest()) is not None and oldest[0] <= self._compute_s:
            yield from self._finish_oldest()

    def _oldest(self) -> tuple[float, Lane] | None:
        """The end of the offload that ends first, and its lane."""
        return min(
            ((each[0][0], lane) for lane, each in self._pending.items() if each), default=None
        )

    def _finish_oldest(self) -> Iterator[Item]:
        oldest = self._oldest()
        assert oldest is not None
        end_s, number = self._pending[oldest[1]].popleft()
        self._live -= self._sizes[number]
        self._compute_s = max(self._compute_s, end_s)
        self._freed.add(number)
        for pair in self.program.route_out(number):
            yield Item(pair.out, number)

    def _new_nbytes(self, index: int) -> int:
        """Bytes of the intervals that begin with launch `index` and are not prefetched yet."""
        return sum(self._sizes[n] for n in self._starting[index] if n not in self._arrival)

    def _wait_for_bytes(self, index: int) -> Iterator[Item]:
        """Wait for offloads until the launch's bytes are below its limit."""
        new = self._new_nbytes(index)
        while self._live + new > self._limits[index]:
            if self._oldest() is None:
                raise CapacityError(f"launch {index} requires {self._live + new} live bytes")
            yield from self._finish_oldest()
        self._live += new

    def _prefetch_needed(self, index: int) -> Iterator[Item]:
        while self._queue and self.program.intervals[self._queue[0]].first <= index:
            number = self._queue[0]
            yield from self._wait_for_offload(number)
            self._queue.popleft()
            yield from self._prefetch(number)

    def _wait_for_offload(self, number: int) -> Iterator[Item]:
        while not self._has_left(number):
            yield from self._finish_oldest()

    def _has_left(self, number: int) -> bool:
        return self.program.intervals[number].previous in self._freed

    def _prefetch(self, number: int) -> Iterator[Item]:
        *far, near = self.program.route_back(number)
        link, live = self._costs.links[near.tier], self.program.intervals[number]
        rate = link.back_duplex if self._pending.get(near.out) else link.back
        start_s = max(self._free_s[near.back], self._earliest_s(number))
        if far:
            ready_s = self._read(number)
            start_s = max(start_s, ready_s)
        delayed = number == self._delayed  # its bytes are of a launch or a copy that has just ended
        if delayed and self._patient:
            start_s = max(start_s, self._compute_s)
        self._arrival[number] = start_s + link.latency_s + live.nbytes / rate
        self._free_s[near.back] = self._arrival[number]
        self.begins[number] = max(start_s, self._compute_s) if delayed else start_s
        for pair in (*far, near):
            yield Item(pair.back, number)

    def _prefetch_start_s(self, number: int) -> float:
        """The second from which the lane of a prefetch is free, and its bytes are on the host."""
        *far, near = self.program.route_back(number)
        ready_s = self._read_ends_s(number)[-1] if far else 0.0
        return max(self._free_s[near.back], ready_s)

    def _read_ends_s(self, number: int) -> list[float]:
        """The seconds at which the bytes of a prefetch come over each link behind the host's."""
        program = self.program
        ends_s, ready_s = list[float](), self._landed.get(program.offload_source(number), 0.0)
        for pair in program.route_back(number)[:-1]:
            link = self._costs.links[pair.tier]
            start_s = max(self._free_s[pair.back], ready_s)
            rate = link.back_duplex if self._free_s[pair.out] > start_s else link.back
            ready_s = start_s + link.latency_s + program.intervals[number].nbytes / rate
            ends_s.append(ready_s)
        return ends_s

    def _read(self, number: int) -> float:
        """Bring the bytes of a prefetch to the host; returns the second at which they are there."""
        ends_s = self._read_ends_s(number)
        for pair, end_s in zip(self.program.route_back(number), ends_s, strict=False):
            self._free_s[pair.back] = end_s
        return ends_s[-1]

    def _earliest_s(self, number: int) -> float:
        """The end of the launch before the one at which the prefetch may be issued."""
        earliest = self.program.intervals[number].earliest_prefetch
        return self._ends[earliest - 1] if earliest > 0 else 0.0

    def _prefetch_ahead(self, index: int) -> Iterator[Item]:
        """Issue prefetches that would start during launch `index`, as far as bytes allow."""
        end_s = self._start_s(index) + self._seconds[index]
        while self._queue:
            number = self._queue[0]
            live = self.program.intervals[number]
            if live.earliest_prefetch > index or not self._has_left(number):
                return
            if self._prefetch_start_s(number) >= end_s:
                return
            if not self._fits(index, number):
                self._delayed = number
                return
            self._queue.popleft()
            self._live += self._sizes[number]
            self._reserved[index : live.first] += self._sizes[number]
            yield from self._prefetch(number)

    def _fits(self, index: int, number: int) -> bool:
        live = self.program.intervals[number]
        spare = self._limits[index : live.first] - self._reserved[index : live.first]
        least = min(int(self._limits[index]) - self._live, int(spare.min(initial=maxsize)))
        return self._sizes[number] <= least

    def _start_s(self, index: int) -> float:
        """The second at which compute is free and the launch's prefetches have arrived."""
        arrivals = (self._arrival.get(n, 0.0) for uses in self.program.reads[index] for n in uses)
        return max(self._compute_s, max(arrivals, default=0.0))

    def _launch(self, index: int) -> None:
        start_s = self._start_s(index)
        for number in self._starting[index]:
            if number not in self._arrival:
                self.begins[number] = start_s
        if self.program.lane_of(index) is Lane.REDUCE:
            self._reduce(index, start_s)
            return
        self._compute_s = start_s + self._seconds[index]
        self._ends[index] = self._compute_s

    def _reduce(self, index: int, start_s: float) -> None:
        """Sum over processes beside later launches; those that read the sum wait for it."""
        start_s = max(start_s, self._free_s[Lane.REDUCE])
        end_s = start_s + self.program.reduce_s(index, self._costs)
        self._free_s[Lane.REDUCE] = self._ends[index] = end_s
        for run in self.program.writes[index]:
            self._arrival.update(dict.fromkeys(run, end_s))

    def _release(self, index: int) -> None:
        """Free the intervals that end with launch `index`, at once or by an offload."""
        for number in self._ending[index]:
            live = self.program.intervals[number]
            if not live.is_offloaded:
                self._live -= self._sizes[number]
                self._freed.add(number)
                self.ends[number] = self._compute_s
                continue
            ready_s = self._ends[live.written] if live.written >= 0 else 0.0
            nbytes = self.program.left_nbytes(number)
            for pair in self.program.route_out(number):
                link, free_s = self._costs.links[pair.tier], self._free_s
                rate = link.out_duplex if free_s[pair.back] > free_s[pair.out] else link.out
                if live.leaves_as is not None:
                    rate *= link.zero_copy_share
                    self._compute_s += link.zero_copy_s(nbytes)
                copy_s = link.latency_s + nbytes / rate
                ready_s = max(free_s[pair.out], ready_s) + copy_s
                free_s[pair.out] = ready_s
            self._landed[number] = ready_s
            near = self.program.route_out(number)[0]
            self.ends[number] = max(self._free_s[near.out], self._compute_s)
            self._pending.setdefault(near.out, deque()).append((self.ends[number], number))

"""Order: launches and copies in one total order that keeps the arena's bytes under a cap.

A list scheduler over predicted time. Launches keep the plan's order. An offload takes its place
where its copy would end, or earlier where a launch must wait for its bytes; a prefetch takes its
place before the launch during which it would start, if every launch up to its own then still has
the bytes that it cannot do without.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from enum import IntEnum
from sys import maxsize
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...graph import Graph
from ..ir.costs import Costs
from .program import NONE, Program


class Event(IntEnum):
    LAUNCH = 0
    OFFLOAD = 1
    PREFETCH = 2


class Entry(NamedTuple):
    """One place in the order: a launch by its index, or the copy of a residency by its number."""

    event: Event
    number: int


class CapacityError(Exception):
    """The launch `launch` cannot have the `nbytes` that it must have at once under the cap."""

    def __init__(self, launch: int, nbytes: int) -> None:
        super().__init__(f"launch {launch} needs {nbytes} bytes at once")
        self.launch = launch
        self.nbytes = nbytes


def demand(program: Program, sizes: Iterable[int] | None = None) -> npt.NDArray[np.int64]:
    """Bytes that each launch must find on the device whatever is copied; the most is the floor.

    Residencies count as of `sizes`, or as of the bytes that they hold.
    """
    sizes = (stay.nbytes for stay in program.residencies) if sizes is None else sizes
    change = np.zeros(len(program.launches) + 1, np.int64)
    for stay, nbytes in zip(program.residencies, sizes, strict=True):
        change[stay.first] += nbytes
        change[stay.last + 1] -= nbytes
    return np.cumsum(change)[:-1]


class Scheduler:
    """Predicted clocks of the lanes, bytes on the device, and those promised to later launches.

    `begins` and `ends` are the seconds at which each residency takes its bytes and frees them.
    """

    def __init__(
        self,
        graph: Graph,
        program: Program,
        costs: Costs,
        caps: npt.NDArray[np.int64],
        needed: npt.NDArray[np.int64],
        held: list[int],
        sync: bool = False,
    ) -> None:
        self._program = program
        self._costs = costs
        self._caps = caps
        self._promised = needed
        self._held = held
        self._sync = sync
        self._seconds = [
            costs.launch_s(graph.passes[launch.pass_index], launch.stop - launch.start)
            for launch in program.launches
        ]
        self._ends = [0.0] * len(program.launches)
        self._compute_s = self._offload_s = self._prefetch_s = 0.0
        self._live = 0
        self._pending: deque[tuple[float, int]] = deque()
        self._arrival: dict[int, float] = {}
        self._gone: set[int] = set()
        self._short = NONE  # what comes back next, if its bytes did not fit before
        self.begins = [0.0] * len(held)
        self.ends = [0.0] * len(held)
        self._starting: list[list[int]] = [[] for _ in program.launches]
        self._ending: list[list[int]] = [[] for _ in program.launches]
        for number, stay in enumerate(program.residencies):
            self._starting[stay.first].append(number)
            self._ending[stay.last].append(number)
        stays = program.residencies
        self._queue = deque(n for ns in self._starting for n in ns if stays[n].fetched)

    def run(self) -> Iterator[Entry]:
        for index, launch in enumerate(self._program.launches):
            boundary = index > 0 and launch.segment != self._program.launches[index - 1].segment
            if index == self._program.phase_split or (self._sync and boundary):
                yield from self._flush()
            yield from self._retire()
            yield from self._make_room(index)
            yield from self._fetch_needed(index)
            yield from self._fetch_ahead(index)
            self._launch(index)
            yield Entry(Event.LAUNCH, index)
            self._release(index)
        yield from self._flush()

    @property
    def end_s(self) -> float:
        """When the last launch and the last copy end."""
        return max(self._compute_s, self._offload_s, self._prefetch_s)

    @property
    def compute_s(self) -> float:
        """What the launches take."""
        return sum(self._seconds)

    def _flush(self) -> Iterator[Entry]:
        """All copies in flight end here."""
        while self._pending:
            yield self._finish_oldest()
        self._compute_s = max(self._compute_s, self._prefetch_s)

    def _retire(self) -> Iterator[Entry]:
        """Offloads that have ended by now free their bytes."""
        while self._pending and self._pending[0][0] <= self._compute_s:
            yield self._finish_oldest()

    def _finish_oldest(self) -> Entry:
        end_s, number = self._pending.popleft()
        self._live -= self._held[number]
        self._compute_s = max(self._compute_s, end_s)
        self._gone.add(number)
        return Entry(Event.OFFLOAD, number)

    def _new_bytes(self, index: int) -> int:
        """Bytes that launch `index` adds: what starts with it and has not been fetched ahead."""
        return sum(self._held[n] for n in self._starting[index] if n not in self._arrival)

    def _make_room(self, index: int) -> Iterator[Entry]:
        """Wait for offloads until the launch's bytes fit."""
        wanted = self._new_bytes(index)
        while self._live + wanted > self._caps[index]:
            if not self._pending:
                raise CapacityError(index, self._live + wanted)
            yield self._finish_oldest()
        self._live += wanted

    def _fetch_needed(self, index: int) -> Iterator[Entry]:
        while self._queue and self._program.residencies[self._queue[0]].first <= index:
            number = self._queue[0]
            yield from self._wait_for_offload(number)
            self._queue.popleft()
            yield self._fetch(number)

    def _wait_for_offload(self, number: int) -> Iterator[Entry]:
        """A section can come back only after it left."""
        while not self._has_left(number):
            yield self._finish_oldest()

    def _has_left(self, number: int) -> bool:
        return self._program.residencies[number].follows in self._gone

    def _fetch(self, number: int) -> Entry:
        link, stay = self._costs.link, self._program.residencies[number]
        rate = link.to_device_duplex if self._pending else link.to_device
        start_s = max(self._prefetch_s, self._compute_floor(number))
        self._prefetch_s = start_s + link.latency_s + stay.nbytes / rate
        self._arrival[number] = self._prefetch_s
        self.begins[number] = max(start_s, self._compute_s) if number == self._short else start_s
        return Entry(Event.PREFETCH, number)

    def _compute_floor(self, number: int) -> float:
        """No copy starts before the launch ahead of its window has ended."""
        opens = self._program.residencies[number].opens
        return self._ends[opens - 1] if opens > 0 else 0.0

    def _fetch_ahead(self, index: int) -> Iterator[Entry]:
        """Issue prefetches that would start during launch `index`, if windows and bytes allow."""
        end_s = self._start_s(index) + self._seconds[index]
        while self._queue and self._prefetch_s < end_s:
            number = self._queue[0]
            stay = self._program.residencies[number]
            if stay.opens > index or not self._has_left(number):
                return
            if not self._fits(index, number):
                self._short = number
                return
            self._queue.popleft()
            self._live += self._held[number]
            self._promised[index : stay.first] += self._held[number]
            yield self._fetch(number)

    def _fits(self, index: int, number: int) -> bool:
        stay = self._program.residencies[number]
        spare = self._caps[index : stay.first] - self._promised[index : stay.first]
        least = min(int(self._caps[index]) - self._live, int(spare.min(initial=maxsize)))
        return self._held[number] <= least

    def _start_s(self, index: int) -> float:
        """When launch `index` can start: compute is free and what it fetches has arrived."""
        waits = (self._arrival.get(n, 0.0) for uses in self._program.reads[index] for n in uses)
        return max(self._compute_s, max(waits, default=0.0))

    def _launch(self, index: int) -> None:
        start_s = self._start_s(index)
        for number in self._starting[index]:
            if number not in self._arrival:
                self.begins[number] = start_s
        self._compute_s = start_s + self._seconds[index]
        self._ends[index] = self._compute_s

    def _release(self, index: int) -> None:
        """Free what launch `index` used last, at once or by an offload."""
        link = self._costs.link
        for number in self._ending[index]:
            stay = self._program.residencies[number]
            if not stay.leaves:
                self._live -= self._held[number]
                self._gone.add(number)
                self.ends[number] = self._compute_s
                continue
            ready_s = self._ends[stay.written] if stay.written >= 0 else 0.0
            rate = link.to_host_duplex if self._prefetch_s > self._offload_s else link.to_host
            copy_s = link.latency_s + stay.nbytes / rate
            self._offload_s = max(self._offload_s, ready_s) + copy_s
            self.ends[number] = max(self._offload_s, self._compute_s)
            self._pending.append((self.ends[number], number))

"""File lanes on a GPU: threads of the host that run the file's steps beside the device's lanes.

The threads of a phase start with it and end with it: nothing of them is left for an interrupt, a
close or garbage collection to end. The device waits for them, and they for the device, by counts in
pinned memory (host_counts.py). The CUDA graph has no node of the host.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from threading import Thread
from typing import Final

from ..planner.ir.schedule import Lane, Schedule, lane_name
from ..planner.lowering.lane_counters import cross_lane_waits
from .binding import Call
from .host_counts import FILE_LANES, RUN, HostCounts
from .section_file import SectionFile

# Seconds for which a thread sleeps between two looks at a count. A copy that waits for its count
# starts half as late on average.
NAP_S: Final = 2e-4
# Seconds between two questions whether the device still works, while threads wait for it.
PATIENCE_S: Final = 1.0
MAX_DELAY_S: Final = 1e-3  # of a random delay


@dataclass(frozen=True, slots=True)
class FilePhase:
    """The file's steps of one phase of a schedule."""

    steps: Mapping[Lane, Sequence[int]]  # of each file lane that is used
    waits: Mapping[int, Mapping[Lane, int]]  # by step, the counts of other lanes that it awaits

    @property
    def awaited(self) -> Collection[tuple[Lane, int]]:
        """The counts of other lanes for which threads of the host wait."""
        return {pair for counts in self.waits.values() for pair in counts.items()}

    @property
    def last_counts(self) -> Mapping[Lane, int]:
        """The counts of the file lanes once their steps have ended."""
        return {lane: own[-1] + 1 for lane, own in self.steps.items()}


def file_phase(schedule: Schedule, first: int, end: int) -> FilePhase | None:
    """The file's steps of [first, end), if there are any."""
    lanes = {index: schedule.steps[index].lane for index in range(first, end)}
    steps = {
        lane: own
        for lane in FILE_LANES
        if (own := [index for index, other in lanes.items() if other is lane])
    }
    if not steps:
        return None
    waits = cross_lane_waits(schedule.steps, first, end)
    return FilePhase(steps, {index: waits[index] for own in steps.values() for index in own})


class FileRun:
    """One run of the file's steps of a phase: a thread for each lane, which keeps its order.

    `spans` are, by step, its start and its end by the host's clock. `random` delays every copy.
    """

    def __init__(
        self,
        phase: FilePhase,
        calls: Sequence[Call],
        file: SectionFile,
        counts: HostCounts,
        random: Random | None = None,
    ) -> None:
        self.spans: dict[int, tuple[float, float]] = {}
        self.phase, self._calls, self._file, self._counts = phase, calls, file, counts
        self._random = random
        self._stopped = False
        self._threads = [
            Thread(target=self._work, args=(lane, own), name=lane_name(lane), daemon=True)
            for lane, own in phase.steps.items()
        ]

    @contextmanager
    def ended(self, is_alive: Callable[[], object]) -> Iterator[None]:
        """A context that ends once all threads have ended; after an error without their copies.

        Inside, `begin` starts them. `is_alive` raises an error where the device has failed.
        """
        try:
            yield
            for thread in self._threads:
                while thread.is_alive():
                    thread.join(PATIENCE_S)
                    is_alive()
        except BaseException:
            self._stop()
            raise

    def begin(self) -> None:
        """Number the run and start its threads, which wait until the device begins it."""
        self._counts.runs += 1
        self._number = self._counts.runs
        for thread in self._threads:
            thread.start()

    def _stop(self) -> None:
        """End all threads. Their counts are written, and no parameter is updated."""
        self._file.fail("the step", "it was stopped by another error")
        self._stopped = True
        for thread in self._threads:
            if thread.ident is not None:  # else it was not started
                thread.join()

    def _work(self, lane: Lane, own: Sequence[int]) -> None:
        """Run the steps of a lane. Whatever happens, its last count is written in the end."""
        whole = False
        try:
            self._wait(RUN, self._number)
            for index in own:
                self._copy(lane, index)
            whole = True
        finally:
            if not whole:
                self._file.fail(f"the lane {lane_name(lane)}", "its thread ended by another error")
            self._counts.set(lane, own[-1] + 1)

    def _copy(self, lane: Lane, index: int) -> None:
        for other, count in self.phase.waits[index].items():
            self._wait(other, count)
        if self._random is not None:
            time.sleep(self._random.uniform(0, MAX_DELAY_S))
        start_s = time.perf_counter()
        if not self._stopped:
            self._calls[index]()
        self.spans[index] = start_s, time.perf_counter()
        self._counts.set(lane, index + 1)

    def _wait(self, word: int, count: int) -> None:
        while self._counts.get(word) < count and not self._stopped:
            time.sleep(NAP_S)

"""Plans made side by side, each in a process of its own."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

PROCESSES = min(8, os.cpu_count() or 1)  # of about 1 GB each
Result = TypeVar("Result")


class Processes:
    """Processes that are begun where first there is more than one job for them."""

    def __init__(self, count: int | None = None) -> None:
        self._count = count or PROCESSES
        self._pool: ProcessPoolExecutor | None = None

    def each(self, jobs: Sequence[Callable[[], Result]]) -> Iterator[tuple[int, Result]]:
        """The number of each job, which can be pickled, and its result, as they are done."""
        if self._count == 1 or len(jobs) == 1:
            yield from ((number, job()) for number, job in enumerate(jobs))
            return
        if self._pool is None:
            # Copies of this process would hold its threads' locks and its GPU.
            spawn = get_context("spawn")
            self._pool = ProcessPoolExecutor(self._count, spawn, _end_when_interrupted)
        numbers = {self._pool.submit(job): number for number, job in enumerate(jobs)}
        for done in as_completed(numbers):
            yield numbers[done], done.result()

    def close(self) -> None:
        """Give the processes back; what they have not begun they leave."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _end_when_interrupted() -> None:
    """Let an interruption, which reaches all processes of a terminal, end this one silently."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)

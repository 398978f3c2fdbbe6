"""Plans made side by side, each in a process of its own."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import TypeVar

from ..errors import HostMemoryError

PROCESSES = min(8, len(os.sched_getaffinity(0)))  # of about 1 GB each
Result = TypeVar("Result")


class Processes:
    """Processes that are begun where first there is more than one job for them."""

    def __init__(self, count: int | None = None) -> None:
        self._count = count or PROCESSES
        self._pool: ProcessPoolExecutor | None = None

    def each(
        self, jobs: Sequence[Callable[[], Result]], progress: Callable[[float], None]
    ) -> Iterator[tuple[int, Result]]:
        """The number of each job, which can be pickled, and its result, as they are done.

        `progress` is told the fraction done. Raises HostMemoryError where a process is ended from
        outside.
        """
        progress(0.0)
        for done, found in enumerate(self._each(jobs), 1):
            yield found
            progress(done / len(jobs))

    def _each(self, jobs: Sequence[Callable[[], Result]]) -> Iterator[tuple[int, Result]]:
        if self._count == 1 or len(jobs) == 1:
            yield from ((number, job()) for number, job in enumerate(jobs))
            return
        if self._pool is None:
            # Copies of this process would hold its threads' locks and its GPU.
            spawn = get_context("spawn")
            self._pool = ProcessPoolExecutor(self._count, spawn, _begin)
        try:
            with _interrupts_held():  # which the processes begun here inherit
                numbers = {self._pool.submit(job): number for number, job in enumerate(jobs)}
            for done in as_completed(numbers):
                yield numbers[done], done.result()
        except BrokenProcessPool as error:
            raise HostMemoryError(
                "a process that plans was ended from outside, most likely for want of host memory: "
                f"each of {self._count} takes about 1 GB; free some, or allow fewer cores (taskset)"
            ) from error

    def close(self) -> None:
        """Give the processes back; what they have not begun they leave."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Let a process end with its parent, and silently by an interruption, which reaches both."""
    Thread(target=_end_with_parent, daemon=True).start()
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Interruptions come at the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)

"""Parallel planning, each plan in a worker process."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from threading import Lock, local
from typing import TypeVar

from ..errors import HostMemoryError, WorkerEndedError
from ..workers.cores import usable_cores
from ..workers.process import Worker

PROCESSES = min(8, usable_cores())  # each takes about 1 GB
Result = TypeVar("Result")


class Processes:
    """Worker processes. They start when there is more than one job.

    Each process belongs to a thread, which waits for its results.
    """

    def __init__(self, count: int | None = None) -> None:
        self._count = count or PROCESSES
        self._threads: ThreadPoolExecutor | None = None
        self._own = local()
        self._lock = Lock()
        self._workers: list[Worker] = []
        self._closed = False

    def each(
        self, jobs: Sequence[Callable[[], Result]], progress: Callable[[float], None]
    ) -> Iterator[tuple[int, Result]]:
        """The number of each job and its result, in the order of completion. Jobs are pickled.

        `progress` receives the fraction done. Raises HostMemoryError where a process is killed from
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
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._count)
        numbers = {
            self._threads.submit(partial(self._call, job)): number
            for number, job in enumerate(jobs)
        }
        try:
            for done in as_completed(numbers):
                yield numbers[done], done.result()
        except WorkerEndedError as error:
            raise HostMemoryError(
                "a process that plans was ended from outside, most likely for want of host memory: "
                f"each of {self._count} takes about 1 GB; free some, or allow fewer cores (taskset)"
            ) from error

    def _call(self, job: Callable[[], Result]) -> Result:
        """The result of the job, from this thread's worker."""
        with self._lock:
            if self._closed:
                raise WorkerEndedError("the worker processes are closed")
            if not hasattr(self._own, "worker"):
                self._own.worker = Worker()
                self._workers.append(self._own.worker)
            worker: Worker = self._own.worker
        return worker.call(job)

    def close(self) -> None:
        """End the processes and their jobs."""
        with self._lock:
            self._closed = True
            for worker in self._workers:
                worker.end()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()

"""A job in a worker process, and its result."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock, Semaphore, Thread
from typing import Final, Generic, TypeVar

from ..errors import WorkerEndedError
from .attempt import Attempt
from .cores import usable_cores
from .process import Worker

Result = TypeVar("Result")
NICENESS: Final = 10  # the cores are for training first
_slots: Final = Semaphore(usable_cores())


class Background(Generic[Result]):
    """A job that a worker process of its own runs, with less priority than this process.

    `make_job` is called on another thread and returns the job, which can be pickled. At most as
    many worker processes run at a time as there are usable cores. Further jobs wait.
    """

    def __init__(self, make_job: Callable[[], Callable[[], Result]]) -> None:
        self._make_job = make_job
        self._future: Future[Result] = Future()
        self._lock = Lock()
        self._worker: Worker | None = None
        self._cancelled = False
        Thread(target=self._run, name="tvdnn background job", daemon=True).start()

    @property
    def done(self) -> bool:
        """Whether `result` returns or raises at once."""
        return self._future.done()

    def result(self) -> Result:
        """Wait for the result of the job. Raises the exception of the job."""
        return self._future.result()

    def error(self) -> BaseException | None:
        """Wait for the exception of the job; None where the job has a result."""
        return self._future.exception()

    def cancel(self) -> None:
        """End the process; a job that is not done raises WorkerEndedError."""
        with self._lock:
            self._cancelled = True
            if self._worker is not None:
                self._worker.end()

    def _run(self) -> None:
        with Attempt() as attempt, _slots:
            result = self._call()
        if attempt.error is None:
            self._future.set_result(result)
        else:
            self._future.set_exception(attempt.error)

    def _call(self) -> Result:
        with self._lock:
            if self._cancelled:
                raise WorkerEndedError("the job was cancelled")
            self._worker = Worker(NICENESS)
        try:
            return self._worker.call(self._make_job())
        finally:
            with self._lock:
                self._worker.close()
                self._worker = None

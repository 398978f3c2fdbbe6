"""A worker process as its parent sees it."""

import atexit
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final, TypeVar
from weakref import WeakSet

from ..errors import WorkerEndedError, WorkerError
from ..gc_pause import without_collection
from .messages import receive, send

Result = TypeVar("Result")
_PACKAGES: Final = Path(__file__).parents[2]  # the folder from which this tvdnn is imported
# Variables by which a process joins others that train together, or waits for input.
_NOT_FOR_WORKERS: Final = (
    "GROUP_",
    "LOCAL_",
    "MASTER_",
    "PYTHONINSPECT",
    "PYTHONSTARTUP",
    "RANK",
    "ROLE_",
    "TORCHELASTIC_",
    "WORLD_SIZE",
)
GRACE_S: Final = 5.0  # seconds in which a process that has closed its output may end
_NO_GPU: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_ONE_THREAD: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Worker:
    """A Python process that runs jobs one at a time, without the main module and without a GPU.

    It ends when this process does. On Linux it also ends with the thread that made it: that thread
    waits for its results.
    """

    def __init__(self, niceness: int = 0) -> None:
        """Start the process.

        Raises WorkerError where there is no Python to start.
        """
        if not sys.executable:
            raise WorkerError("this Python does not know its own program (sys.executable is empty)")
        command = [sys.executable, "-m", "tvdnn.workers", str(os.getpid()), str(niceness)]
        try:
            self._errors = TemporaryFile()  # noqa: SIM115 - open as long as the process runs
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                cwd=_PACKAGES,
                env=_environment(),
                start_new_session=True,  # an interrupt at the terminal is for the parent alone
            )
        except OSError as error:
            raise WorkerError(f"{sys.executable} does not start: {error}") from error
        _running.add(self)

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, job: Callable[[], Result]) -> Result:
        """The result of a job that can be pickled. Raises the exception of the job.

        Raises WorkerEndedError where the process ends before its answer.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with without_collection():  # the search for cycles would stop all threads
            message = pickle.dumps(job)
        try:
            send(self._process.stdin, message)
            answer = receive(self._process.stdout)
        except (OSError, ValueError):  # ValueError: another thread closed the pipe
            answer = None
        if answer is None:
            raise WorkerEndedError(self._ending())
        with without_collection():
            done, found = pickle.loads(answer)
        if done:
            result: Result = found
            return result
        error, text = found
        if not isinstance(error, Exception):
            raise WorkerError(f"a job failed in a worker process: {text}")
        raise error from WorkerError(text)

    def end(self) -> None:
        """Kill the process, whatever it is doing."""
        _running.discard(self)
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Kill the process and close the pipes; `call` must not be running."""
        self.end()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            _close_dropping_rest(stream)

    def _ending(self) -> str:
        """How the process ended, and the last line that it wrote."""
        with suppress(subprocess.TimeoutExpired):  # it may have closed its output alone
            self._process.wait(GRACE_S)
        self._process.kill()
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
        return f"a worker process {how}" + (f": {lines[-1]}" if lines else "")


_running: "WeakSet[Worker]" = WeakSet()


def _environment() -> dict[str, str]:
    """This process's environment and import path, but no GPU, no rank and one thread."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(_NOT_FOR_WORKERS)
    }
    folders = [str(Path(each).absolute()) for each in (*sys.path, str(_PACKAGES))]
    path = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(folders)), "PYTHONSAFEPATH": "1"}
    return {**kept, **path, **dict.fromkeys(_NO_GPU, ""), **dict.fromkeys(_ONE_THREAD, "1")}


def _close_dropping_rest(stream: IO[bytes] | None) -> None:
    if stream is not None:
        with suppress(OSError):
            stream.close()


def _end_all() -> None:
    for worker in list(_running):
        worker.end()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_running.clear)  # a child process has no workers yet

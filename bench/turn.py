"""Turns of processes that share a GPU."""

import fcntl
import sys
import time
from pathlib import Path
from tempfile import gettempdir
from typing import Final, Protocol

READY: Final = "ready\n"  # a child asks its parent to be alone on the GPU
DONE: Final = "done\n"  # the child needs to be alone no longer
GO: Final = "go\n"  # the parent's answer to READY


class TurnLock(Protocol):
    """What a turn waits for."""

    def acquire(self) -> None: ...

    def release(self) -> None: ...


class FileLock:
    """A lock among processes that know nothing of one another."""

    def __init__(self) -> None:
        self._file = (Path(gettempdir()) / "tvdnn-bench.lock").open("w")

    def acquire(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def release(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)


class ParentLock:
    """A lock that the parent process gives, having stopped all others: `bench/side_by_side.py`."""

    def __init__(self) -> None:
        self._held = False

    def acquire(self) -> None:
        if self._held:
            return
        print(READY, end="", flush=True)
        if not sys.stdin.readline():
            sys.exit("the process that started this one has ended")
        self._held = True

    def release(self) -> None:
        if self._held:
            print(DONE, end="", flush=True)
        self._held = False


class Turn:
    """A job's turn to use a GPU, where several of a host run side by side.

    Told of a trainer's progress, it is taken for all but tracing and planning. Three jobs that
    copied at once, each on a GPU of its own, took up to 13% longer. Two H200s of one host that copy
    both ways at once reach 67 GB/s each, where one alone reaches 89 (2026-11-30).
    """

    def __init__(self, lock: TurnLock | None = None) -> None:
        self._lock = FileLock() if lock is None else lock
        self.waits: list[tuple[float, float]] = []  # from and to, by the monotonic clock

    def take(self) -> None:
        begun_s = time.monotonic()
        self._lock.acquire()
        self.waits.append((begun_s, time.monotonic()))

    @property
    def waited_s(self) -> float:
        """Seconds waited so far."""
        return sum(ended_s - begun_s for begun_s, ended_s in self.waits)

    def worked(self, start_s: float, end_s: float) -> list[tuple[float, float]]:
        """The spans between two times, by the monotonic clock, in which the job did not wait."""
        spans = []
        for begun_s, ended_s in self.waits:
            if start_s <= begun_s and ended_s <= end_s:
                spans.append((start_s, begun_s))
                start_s = ended_s
        return [*spans, (start_s, end_s)]

    def give(self) -> None:
        self._lock.release()

    def __call__(self, stage: str, fraction: float) -> None:
        if stage == "tracing" or (stage, fraction) == ("planning", 0.0):
            self.give()
        elif stage in ("profiling", "planning"):
            self.take()

"""Child processes side by side on a GPU: all but one stop while that one is timed."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import IO, Final

from bench.turn import DONE, GO, READY

BEGIN: Final = "begin "  # opens a child's line before work that has a limit; then comes its name


class Child:
    """A process that SideBySide started."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.begun: str | None = None  # the name in the last line that began with BEGIN
        self.late = False
        self.alone = False  # the others are stopped
        self._begun_s: float | None = None  # when that line came, until the first turn after it
        self._stops: list[tuple[float, float]] = []  # when it was stopped, and went on
        self._stopped_at_s: float | None = None  # where it is stopped now

    @property
    def working_s(self) -> float:
        """Seconds that the process has run between its last BEGIN and its turn."""
        now_s = time.monotonic()
        begun_s = now_s if self._begun_s is None else self._begun_s
        return now_s - begun_s - self.stopped_s(begun_s, now_s)

    def stopped_s(self, start_s: float, end_s: float) -> float:
        """Seconds between two times of the monotonic clock in which the process was stopped."""
        stops = list(self._stops)
        if self._stopped_at_s is not None:
            stops.append((self._stopped_at_s, end_s))
        return sum(max(0.0, min(end, end_s) - max(start, start_s)) for start, end in stops)

    def begin(self, name: str) -> None:
        self.begun, self._begun_s = name, time.monotonic()

    def wait(self) -> None:
        self._begun_s = None

    def stop(self) -> None:
        self._stopped_at_s = time.monotonic()
        self.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)
        if self._stopped_at_s is not None:
            self._stops.append((self._stopped_at_s, time.monotonic()))
        self._stopped_at_s = None

    def run_alone(self) -> None:
        self.alone = True
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has been ended meanwhile
            self.process.stdin.write(GO)
            self.process.stdin.flush()

    def signal(self, number: int) -> None:
        """Send a signal to the process and to those that it has started."""
        with suppress(ProcessLookupError):  # it has ended just now
            if self.process.poll() is None:
                os.killpg(self.process.pid, number)


class SideBySide:
    """The children of this process that share a GPU.

    It is this process's GPU, or that of number `gpu`, with these `cores` of the machine.
    """

    def __init__(self, gpu: int | None = None, cores: Collection[int] = ()) -> None:
        self._timing = Lock()
        self._cores = cores
        self._visible = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)}
        self._running: list[Child] = []
        self.ended = False

    def lines(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> Iterator[tuple[Child, str]]:
        """The process of a command and each line that it prints, but those about turns.

        Raises ChildProcessError with the last line of its errors where it fails, TimeoutError where
        it was ended.
        """
        with tempfile.TemporaryFile("w+") as errors:
            child = self._start(command, environment, errors)
            try:
                assert child.process.stdout is not None
                for line in child.process.stdout:
                    if not self._follows(child, line):
                        yield child, line
                child.process.wait()
            finally:
                self._leave(child)
            if child.late or self.ended:
                raise TimeoutError(child.begun)
            if child.process.returncode:
                errors.seek(0)
                told = errors.read().strip().splitlines()
                raise ChildProcessError(told[-1] if told else f"rc {child.process.returncode}")

    def end_late(self, limit_s: float) -> None:
        """End each process that has run for more seconds than this between BEGIN and its turn."""
        for child in list(self._running):
            if child.working_s > limit_s:
                child.late = True
                child.signal(signal.SIGKILL)

    def end(self) -> None:
        """End all processes, and start no other."""
        self.ended = True
        for child in list(self._running):
            child.signal(signal.SIGKILL)

    def _start(
        self, command: Sequence[str], environment: Mapping[str, str] | None, errors: IO[str]
    ) -> Child:
        with self._timing:
            if self.ended:
                raise TimeoutError(command[-1])
            process = subprocess.Popen(
                command,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**(os.environ if environment is None else environment), **self._visible},
                start_new_session=True,
            )
            if self._cores:
                os.sched_setaffinity(process.pid, self._cores)
            child = Child(process)
            self._running.append(child)
        return child

    def _follows(self, child: Child, line: str) -> bool:
        """Do as a line about turns asks. Whether it is one."""
        if line == READY:
            child.wait()
            self._timing.acquire()
            for other in list(self._running):
                if other is not child:
                    other.stop()
            child.run_alone()
        elif line == DONE:
            self._resume(child)
        elif line.startswith(BEGIN):
            child.begin(line.removeprefix(BEGIN).strip())
        else:
            return False
        return True

    def _resume(self, child: Child) -> None:
        """Let the others go on, if the child was alone."""
        if not child.alone:
            return
        child.alone = False
        for other in list(self._running):
            if other is not child:
                other.go_on()
        self._timing.release()

    def _leave(self, child: Child) -> None:
        child.signal(signal.SIGKILL)  # one whose lines are read no further
        child.process.wait()
        self._running.remove(child)
        self._resume(child)

"""compared: what comes of a network within a time limit."""

import signal
from types import FrameType

from bench.generated.case import load
from bench.generated.compare import FAILED, Outcome, Setup, compare
from bench.generated.program import Program

LIMIT_S = 120  # of the CPU's time for a network
GPU_LIMIT_S = 900  # where its kernels are compiled first
WAIT_TIMES = 10  # the limit: how long a network may take that waits, or shares the CPU


class OutOfTimeError(Exception):
    """A network took longer than it may."""


def compared(program: Program, setup: Setup) -> Outcome:
    """The outcome of a network. It is FAILED where that takes more CPU time than the limit."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise OutOfTimeError(f"more than {limit} s of the CPU's time")

    limit = LIMIT_S if setup.device == "cpu" else GPU_LIMIT_S
    signal.signal(signal.SIGPROF, stop)
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_PROF, limit)
    signal.alarm(WAIT_TIMES * limit)
    try:
        return compare(load(program.printed()), setup)
    except OutOfTimeError as error:
        return Outcome(FAILED, str(error))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)

"""compared: what comes of a network within a time limit."""

import signal
from types import FrameType

from .case import load
from .compare import FAILED, Outcome, Setup, compare
from .program import Program

LIMIT_S = 120  # of a network on the CPU
GPU_LIMIT_S = 900  # where its kernels are compiled first


class OutOfTimeError(Exception):
    """A network took longer than it may."""


def compared(program: Program, setup: Setup) -> Outcome:
    """What comes of a network; FAILED where that takes longer than the limit."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise OutOfTimeError(f"more than {limit} s")

    limit = LIMIT_S if setup.device == "cpu" else GPU_LIMIT_S
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(limit)
    try:
        return compare(load(program.printed()), setup)
    except OutOfTimeError as error:
        return Outcome(FAILED, str(error))
    finally:
        signal.alarm(0)

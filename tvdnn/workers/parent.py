"""The end of a process together with its parent."""

import ctypes
import os
import signal
import sys
from typing import Final

_SET_PARENT_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG of Linux's prctl


def end_with(parent: int) -> None:
    """Let this process be killed when process `parent` dies, however busy it is (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before
        os._exit(1)

"""CPU seconds of what has to be quick, on machines that run other tests beside it."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def cpu_s(run: Callable[[], T], limit_s: float) -> tuple[T, float]:
    """What `run` gives, and its CPU seconds: where they pass the limit, the lesser of two runs'.

    A neighbour on the other thread of a core makes them up to twice as many.
    """
    begin = time.process_time()
    result = run()
    seconds = time.process_time() - begin
    if seconds < limit_s:
        return result, seconds
    begin = time.process_time()
    run()
    return result, min(seconds, time.process_time() - begin)

"""Jobs side by side in copies of a worker process."""

import gc
import os
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final

from .attempt import Attempt
from .parent import end_with

_NUMBER: Final = Struct("<I")


def run_in_forks(jobs: Sequence[Callable[[], object]], processes: int) -> None:
    """Run every job once, in at most so many copies of this process; drop results and exceptions.

    The copies share the modules that this process has imported. Each takes the next job when it is
    done with one, in the order of `jobs`. They end with this process. No other thread of this
    process may hold a lock that jobs take.
    """
    numbers, feed = os.pipe()
    gc.freeze()  # a copy's search for cycles would copy the memory that it shares: 5% of its time
    children = [
        child for _ in range(min(processes, len(jobs))) if (child := _fork(jobs, numbers, feed))
    ]
    gc.unfreeze()
    os.close(numbers)
    with Attempt(), os.fdopen(feed, "wb") as stream:  # a broken pipe: all copies were killed
        stream.writelines(map(_NUMBER.pack, range(len(jobs))))
    for child in children:
        os.waitpid(child, 0)


def _fork(jobs: Sequence[Callable[[], object]], numbers: int, feed: int) -> int:
    """Fork a copy that runs the jobs whose numbers it reads; returns its id."""
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        os.close(feed)
        end_with(parent)
        while number := os.read(numbers, _NUMBER.size):  # Linux gives each number to one reader
            with Attempt():
                jobs[_NUMBER.unpack(number)[0]]()
    finally:
        os._exit(0)

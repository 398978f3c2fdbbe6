"""Stages that Python's search for cycles would slow down, or break, run without it."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock


class _Search:
    """The search for cycles, which stands still as long as any thread asks for that."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._stopped_by = 0
        self._enabled = True

    def stop(self) -> None:
        with self._lock:
            if self._stopped_by == 0:
                self._enabled = gc.isenabled()
                gc.disable()
            self._stopped_by += 1

    def go_on(self) -> None:
        with self._lock:
            self._stopped_by -= 1
            if self._stopped_by == 0 and self._enabled:
                gc.enable()


_search = _Search()


@contextmanager
def without_collection() -> Iterator[None]:
    """Without the search: through the records of ten thousand layers it takes half the time.

    What it frees may do what no capture of a CUDA graph allows.
    """
    _search.stop()
    try:
        yield
    finally:
        _search.go_on()

"""The first step of an engine: what its user waits for, by part."""

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from .build import Progress

OTHER: Final = "other"


class FirstStep:
    """Seconds from the making of an engine to the end of its first step, by part.

    It takes the engine's progress and hands it on to `progress`. A part begins with its first
    report and ends with the next part's, or with a report of 1.0. What no part holds is "other".
    """

    def __init__(
        self, progress: Progress | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._progress, self._clock = progress, clock
        self._seconds: dict[str, float] = {}
        self._part, self._since = OTHER, clock()
        self.ended = False

    def __call__(self, part: str, fraction: float) -> None:
        """Note that so much of a part is done."""
        self._change(OTHER if fraction >= 1.0 else part)
        if self._progress is not None:
            self._progress(part, fraction)

    def end(self, wait: Callable[[], None]) -> None:
        """Wait for the first step, and note that it has ended. Later reports are only handed on."""
        if not self.ended:
            wait()
            self._change(OTHER)
            self.ended = True

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds by part, in the order in which the parts began. Their sum is the whole."""
        return MappingProxyType(self._seconds)

    def _change(self, part: str) -> None:
        if not self.ended:
            now = self._clock()
            self._seconds[self._part] = self._seconds.get(self._part, 0.0) + now - self._since
            self._part, self._since = part, now

"""Timeline: when each step started and ended, as simulated or as measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .schedule import Action, Lane, Schedule


class Span(NamedTuple):
    """Step `step` of the schedule occupied `lane` from `start_s` to `end_s`."""

    lane: Lane
    step: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """Spans in the order of the schedule's steps; `stall_s` is compute time lost to copies."""

    spans: tuple[Span, ...]
    simulated: bool
    stall_s: float

    @property
    def step_s(self) -> float:
        """Seconds from the first start to the last end."""
        if not self.spans:
            return 0.0
        return max(s.end_s for s in self.spans) - min(s.start_s for s in self.spans)

    @property
    def copy_s(self) -> float:
        return sum(s.end_s - s.start_s for s in self.spans if s.lane is not Lane.COMPUTE)

    @property
    def overlap(self) -> float | None:
        """Share of the copies' seconds that hides behind compute; None where nothing is copied."""
        return None if self.copy_s == 0 else max(0.0, 1.0 - self.stall_s / self.copy_s)


def copy_waits(schedule: Schedule, spans: Sequence[Span]) -> tuple[tuple[float, float], ...]:
    """Intervals in which the next launch could have run but for the copies that it waits for.

    The first launch of the second half waits for all copies of the first.
    """
    ends = {span.step: span.end_s for span in spans}
    waits: list[tuple[float, float]] = []
    free_s, half = spans[0].start_s if spans else 0.0, 0
    for span in spans:
        if span.lane is not Lane.COMPUTE:
            continue
        before = list(schedule.steps[span.step].waits)
        if half < schedule.cut <= span.step:
            half = schedule.cut
            before = [s.step for s in spans if s.step < half]
        copies = (w for w in before if schedule.steps[w].action is Action.COPY and w in ends)
        arrived_s = max((ends[w] for w in copies), default=0.0)
        if arrived_s > free_s:
            waits.append((free_s, arrived_s))
        free_s = span.end_s
    return tuple(waits)

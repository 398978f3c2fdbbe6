"""Timeline: the start and the end of each step, simulated or measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .schedule import COPY_LANES, Action, Lane, Schedule


class Span(NamedTuple):
    """Step `step` of the schedule occupied `lane` from `start_s` to `end_s`."""

    lane: Lane
    step: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """The spans of all steps, in the order of the schedule."""

    spans: tuple[Span, ...]
    simulated: bool
    stall_s: float  # seconds that compute waits for copies

    @property
    def step_s(self) -> float:
        """Seconds from the first start to the last end."""
        if not self.spans:
            return 0.0
        return max(s.end_s for s in self.spans) - min(s.start_s for s in self.spans)

    @property
    def copy_s(self) -> float:
        return sum(s.end_s - s.start_s for s in self.spans if s.lane in COPY_LANES)

    @property
    def overlap(self) -> float | None:
        """The share of the copies' seconds hidden behind compute; None without copies."""
        return None if self.copy_s == 0 else max(0.0, 1.0 - self.stall_s / self.copy_s)


def recode_s(schedule: Schedule, timeline: Timeline) -> float:
    """Seconds of all recodes among the launches."""
    return sum(
        span.end_s - span.start_s
        for span in timeline.spans
        if span.lane is Lane.COMPUTE and schedule.steps[span.step].action is Action.RECODE
    )


def copy_waits(schedule: Schedule, spans: Sequence[Span]) -> tuple[tuple[float, float], ...]:
    """Intervals in seconds in which the next launch waits for copies alone.

    The first launch of the second phase waits for all copies of the first phase.
    """
    ends = {span.step: span.end_s for span in spans}
    waits: list[tuple[float, float]] = []
    free_s, phase = spans[0].start_s if spans else 0.0, 0
    for span in spans:
        if span.lane is not Lane.COMPUTE:
            continue
        before = list(schedule.steps[span.step].waits)
        if phase < schedule.phase_split <= span.step:
            phase = schedule.phase_split
            before = [s.step for s in spans if s.step < phase]

        copies = (w for w in before if schedule.steps[w].lane in COPY_LANES and w in ends)
        arrived_s = max((ends[w] for w in copies), default=0.0)
        if arrived_s > free_s:
            waits.append((free_s, arrived_s))
        free_s = span.end_s
    return tuple(waits)

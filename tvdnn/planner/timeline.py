"""Timeline: when each step started and ended, as simulated or as measured."""

from dataclasses import dataclass

from .schedule import Lane


@dataclass(frozen=True, slots=True)
class Span:
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

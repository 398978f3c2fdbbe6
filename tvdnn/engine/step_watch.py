"""Times the first steps of a runner, and measures one where they miss their prediction."""

from enum import Enum
from statistics import median
from typing import Final

from ..planner.ir.timeline import Timeline
from ..planner.timing.calibrate import concat_timelines, is_mispredicted
from ..runtime.binding import Lap
from ..runtime.runner import Runner

WARM: Final = 1  # steps that run before any is timed
TIMED: Final = 3


class Stage(Enum):
    """Whether a step is only run, timed or measured."""

    PLAIN = "plain"
    TIMED = "timed"
    MEASURED = "measured"


class StepWatch:
    """Runs the steps of `runner`, which should take `predicted_s` seconds.

    With `predicted_s` of None the next step is measured in any case. All steps train as without a
    watch. `measured` is the timeline of the measured step, `done` tells whether the watch is over.
    """

    def __init__(self, runner: Runner, predicted_s: float | None) -> None:
        self.measured: Timeline | None = None
        self.done = False
        self._runner, self._predicted_s = runner, predicted_s
        self._count = 0
        self._stage = Stage.PLAIN
        self._laps: list[Lap] = []
        self._steps: list[list[Lap]] = []
        self._phases: list[Timeline] = []

    @property
    def is_requested(self) -> bool:
        """Whether a step is measured at the user's request."""
        return self._predicted_s is None

    def run(self, phase: int) -> None:
        """Run one phase of the step."""
        if phase == 0:
            self._laps, self._phases, self._stage = [], [], self._next()
        if self._stage is Stage.TIMED:
            self._laps.append(self._runner.timed(phase))
        elif self._stage is Stage.MEASURED:
            self._phases.append(self._runner.timeline(phase))
        else:
            self._runner.run(phase)
        if phase == len(self._runner.phases) - 1:
            self._end()

    def _next(self) -> Stage:
        if self._predicted_s is None:
            return Stage.MEASURED
        if self._count < WARM:
            return Stage.PLAIN
        if self._count < WARM + TIMED:
            return Stage.TIMED
        taken_s = median(sum(lap() for lap in laps) for laps in self._steps)
        self.done = not is_mispredicted(taken_s, self._predicted_s)
        return Stage.PLAIN if self.done else Stage.MEASURED

    def _end(self) -> None:
        self._count += 1
        if self._stage is Stage.TIMED:
            self._steps.append(self._laps)
        elif self._stage is Stage.MEASURED:
            self.measured = concat_timelines(tuple(self._phases))
            self.done = True

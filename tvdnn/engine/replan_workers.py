"""Replanning: worker processes make new plans by the measured steps of an engine."""

import warnings
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..graph import Form
from ..planner.ir.costs import Costs
from ..planner.ir.schedule import Schedule
from ..planner.ir.timeline import Timeline
from ..planner.replan import ReplanAnswer, ReplanRequest, replan, sendable
from ..planner.timing.calibrate import Calibration, compare
from ..runtime.runner import Runner
from ..workers.background import Background
from .step_watch import StepWatch


def warned_of_failure(background: Background[Any], how: str) -> bool:
    """Whether a job that was to make the plan anew in this way has failed; a warning says so then.

    Training goes on with the present plan. The warning is at the caller of the calling function.
    """
    error = background.error()
    if error is not None:
        warnings.warn(
            f"the plan could not be made anew {how}; training goes on with the present plan "
            f"({type(error).__name__}: {error})",
            RuntimeWarning,
            stacklevel=3,
        )
    return error is not None


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A measured step of a schedule, and the costs that predicted it."""

    schedule: Schedule
    costs: Costs
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class Pending:
    """A new plan that is being made because of a measured step."""

    cause: MeasuredStep
    background: Background[ReplanAnswer]


class Replanner:
    """Measured steps by the key of their runner, and the new plans that follow from them."""

    def __init__(self, *, paged: bool) -> None:
        self._paged = paged  # whether arenas may lie in pages
        self._watches: dict[Hashable, StepWatch] = {}
        self._measured: dict[Hashable, MeasuredStep] = {}
        self._feedbacks: dict[Hashable, Calibration] = {}
        self._replanned: set[Hashable] = set()
        self._pending: dict[Hashable, Pending] = {}

    @property
    def pending(self) -> tuple[Hashable, ...]:
        """The keys of the new plans that are being made."""
        return tuple(self._pending)

    def feedback(self, key: Hashable) -> Calibration | None:
        """The step that was measured last for `key` beside its prediction.

        The prediction is simulated when it is first asked for, not during training.
        """
        if key not in self._measured:
            return None
        if key not in self._feedbacks:
            found = self._measured[key]
            self._feedbacks[key] = compare(found.schedule, found.costs, found.timeline)
        return replace(self._feedbacks[key], replanned=key in self._replanned)

    def watch(self, key: Hashable, watch: StepWatch) -> None:
        """Run the next steps for `key` under watch."""
        self._watches[key] = watch

    def run(self, key: Hashable, runner: Runner, costs: Costs, phase: int) -> bool:
        """Run one phase of a step, under watch at first.

        Returns whether the step was measured because it misses its prediction.
        """
        watch = self._watches.get(key)
        if watch is None:
            runner.run(phase)
            return False
        watch.run(phase)
        if watch.done:
            del self._watches[key]
        if watch.measured is None:
            return False
        self._keep_feedback(key, MeasuredStep(runner.schedule, costs, watch.measured))
        return not watch.is_requested

    def _keep_feedback(self, key: Hashable, measured: MeasuredStep) -> None:
        self._measured[key] = measured
        self._feedbacks.pop(key, None)
        self._replanned.discard(key)

    def ask(
        self,
        key: Hashable,
        policy: str,
        lead: int | None,
        host_budget: int | None,
        lossy: Mapping[str, Form],
    ) -> None:
        """Have a new plan for `key` made in another process, by its measured step.

        `lossy` are the codecs that may round maps in it.
        """
        cause = self._measured[key]

        def job() -> partial[ReplanAnswer]:
            schedule = replace(cause.schedule, graph=sendable(cause.schedule.graph))
            limits = policy, lead, host_budget, self._paged, lossy
            return partial(replan, ReplanRequest(schedule, cause.costs, cause.timeline, *limits))

        self._pending[key] = Pending(cause, Background(job))

    def wait(self) -> None:
        """Wait until no plan is being made any more."""
        for pending in self._pending.values():
            pending.background.error()

    def answer(self, key: Hashable) -> ReplanAnswer | None:
        """The answer for `key` with the engine's graph and costs, once; None while there is none.

        Where the worker failed, a warning says so, and training goes on by the present plan.
        """
        pending = self._pending.get(key)
        if pending is None or not pending.background.done:
            return None
        del self._pending[key]
        if warned_of_failure(pending.background, "from the measured steps"):
            return None
        return _grafted(pending.background.result(), pending.cause)

    def taken_over(self, key: Hashable, cause: Schedule) -> None:
        """Note that a new plan for `key` took the place of the measured schedule."""
        if key in self._measured and self._measured[key].schedule is cause:
            self._replanned.add(key)

    def drop(self, key: Hashable) -> None:
        """Stop making a new plan for `key`."""
        pending = self._pending.pop(key, None)
        if pending is not None:
            pending.background.cancel()

    def drop_all(self) -> None:
        """Stop watching steps and making plans anew."""
        self._watches.clear()
        for key in self.pending:
            self.drop(key)

    def forget(self, key: Hashable) -> None:
        """Drop the plan being made for `key`, its watch and its measured step."""
        self.drop(key)
        self._watches.pop(key, None)
        self._measured.pop(key, None)
        self._feedbacks.pop(key, None)
        self._replanned.discard(key)


def _grafted(answer: ReplanAnswer, cause: MeasuredStep) -> ReplanAnswer:
    """The answer with the engine's own graph and costs in the place of the worker's copies."""
    costs = replace(answer.costs, costs=cause.costs)
    if answer.schedule is None:
        return ReplanAnswer(costs, None)
    host_budget = cause.schedule.host_budget_nbytes
    schedule = replace(answer.schedule, graph=cause.schedule.graph, host_budget_nbytes=host_budget)
    return ReplanAnswer(costs, schedule)

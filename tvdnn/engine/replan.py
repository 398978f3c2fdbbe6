"""Replanning by the engine: measured steps, and plans that worker processes make anew by them."""

import warnings
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import partial

from ..planner.ir.costs import Costs
from ..planner.ir.schedule import Schedule
from ..planner.ir.timeline import Timeline
from ..planner.replan import ReplanAnswer, ReplanRequest, replan, sendable
from ..planner.timing.calibrate import Calibration, compare
from ..workers.background import Background


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured step of a schedule, and the costs that predicted it."""

    schedule: Schedule
    costs: Costs
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class Pending:
    """A plan that is being made anew because of a measured step."""

    cause: Measured
    background: Background[ReplanAnswer]


class Replanner:
    """Measured steps by the key of their runner, and the plans being made anew because of them."""

    def __init__(self) -> None:
        self._measured: dict[Hashable, Measured] = {}
        self._feedbacks: dict[Hashable, Calibration] = {}
        self._replanned: set[Hashable] = set()
        self._pending: dict[Hashable, Pending] = {}

    @property
    def pending(self) -> tuple[Hashable, ...]:
        """The keys of the plans that are being made anew."""
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

    def keep(self, key: Hashable, measured: Measured) -> None:
        """Keep a measured step as the feedback for `key`."""
        self._measured[key] = measured
        self._feedbacks.pop(key, None)
        self._replanned.discard(key)

    def ask(self, key: Hashable, policy: str, lead: int | None, host_budget: int | None) -> None:
        """Have the plan for `key` made anew by its measured step, in another process."""
        cause = self._measured[key]

        def job() -> partial[ReplanAnswer]:
            schedule = replace(cause.schedule, graph=sendable(cause.schedule.graph))
            limits = policy, lead, host_budget
            return partial(replan, ReplanRequest(schedule, cause.costs, cause.timeline, *limits))

        self._pending[key] = Pending(cause, Background(job))

    def wait(self) -> None:
        """Wait until no plan is being made any more."""
        for pending in self._pending.values():
            pending.background.error()

    def answer(self, key: Hashable) -> ReplanAnswer | None:
        """The answer for `key` if it is there, once; with the graph and costs of the engine.

        None also where the worker failed: a warning says so, and training goes on as before.
        """
        pending = self._pending.get(key)
        if pending is None or not pending.background.done:
            return None
        del self._pending[key]
        error = pending.background.error()
        if error is not None:
            warnings.warn(
                "the plan could not be made anew from the measured steps; training goes on with "
                f"the present plan ({type(error).__name__}: {error})",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        return _grafted(pending.background.result(), pending.cause)

    def taken_over(self, key: Hashable, cause: Schedule) -> None:
        """Note that the plan for `key` took the place of the schedule that was measured."""
        if key in self._measured and self._measured[key].schedule is cause:
            self._replanned.add(key)

    def drop(self, key: Hashable) -> None:
        """Stop making the plan for `key` anew, if it is."""
        pending = self._pending.pop(key, None)
        if pending is not None:
            pending.background.cancel()

    def drop_all(self) -> None:
        """Stop making any plan anew."""
        for key in self.pending:
            self.drop(key)

    def forget(self, key: Hashable) -> None:
        """Drop the plan being made for `key`, and what was measured."""
        self.drop(key)
        self._measured.pop(key, None)
        self._feedbacks.pop(key, None)
        self._replanned.discard(key)


def _grafted(answer: ReplanAnswer, cause: Measured) -> ReplanAnswer:
    """The answer for the engine's own graph and costs, of which the worker had copies."""
    costs = replace(answer.costs, costs=cause.costs)
    if answer.schedule is None:
        return ReplanAnswer(costs, None)
    host_budget = cause.schedule.host_budget_nbytes
    schedule = replace(answer.schedule, graph=cause.schedule.graph, host_budget_nbytes=host_budget)
    return ReplanAnswer(costs, schedule)

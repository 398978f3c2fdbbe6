"""Rounding plans: the plans of an engine that may round maps, and what was measured of them.

Beside such a plan an exact one is kept. No update is made by a plan that rounds maps before its
gradients were measured. Where they are over the limit, the exact plan takes its place, and a worker
makes a new one without the codecs of the maps that cause it.
"""

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isnan

from ..graph import Form
from ..planner.ir.costs import Costs
from ..planner.ir.schedule import Schedule
from ..planner.lowering.rounded_codes import ROUNDING, lossy_forms
from ..planner.make import Problem
from ..planner.policies.auto import AUTO
from ..planner.replan import sendable
from ..planner.rounding import RoundingRequest, first_forms, replan_rounding
from ..planner.timing.simulate import simulate
from ..runtime.runner import Runner
from ..workers.background import Background
from .replan_workers import warned_of_failure
from .rounding_search import Errors, Verdict, worst_of

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class DroppedCode:
    """A codec by which a map is rounded no more, because of the error of a gradient.

    The error is no number where the map was one of many and was not judged.
    """

    buffer: str
    form: Form
    error: float
    parameter: str

    def __str__(self) -> str:
        if not self.parameter:
            return f"{self.form} of {self.buffer}, not judged"
        return f"{self.form} of {self.buffer}: {self.error:.2%} in the gradient of {self.parameter}"


@dataclass(frozen=True, slots=True)
class RoundingReport:
    """What was measured last of gradients that follow from rounded maps.

    `errors` are the relative RMS errors by parameter. In a user's loop an input that has a gradient
    has one too, as "input" and its name. `rounded` are the maps of the plan that was measured, with
    their codecs.
    """

    limit: float
    errors: Errors
    rounded: Mapping[str, Form]
    dropped: tuple[DroppedCode, ...] = ()  # so far
    measured: int = 0  # how often

    @property
    def worst(self) -> tuple[float, str]:
        """The largest error, and whose it is."""
        return worst_of(self.errors)

    def __str__(self) -> str:
        error, parameter = self.worst
        found = f"{len(self.rounded)} maps rounded; the largest error of a gradient is "
        found += f"{error:.2%}, of {parameter}, with {self.limit:.2%} allowed"
        return "\n".join((found, *(f"dropped {each}" for each in self.dropped)))


@dataclass
class _Rounding:
    """The plans for one key: the exact one, and the codecs that may still round maps."""

    exact: Schedule
    allowed: dict[str, tuple[Form, ...]]
    measured: Runner | None = None  # whose gradients are within the limit
    steps: int = 0  # since they were measured
    report: RoundingReport | None = None
    pending: Background[Schedule | None] | None = None


@dataclass
class RoundingPlans:
    """The rounding plans of an engine by the key of their runner; none without a `limit`."""

    limit: float | None
    every: int  # steps between two checks
    paged: bool  # whether arenas may lie in pages
    _by_key: dict[Hashable, _Rounding] = field(default_factory=dict)

    @property
    def pending(self) -> tuple[Hashable, ...]:
        """The keys of the new plans that are being made."""
        return tuple(key for key, each in self._by_key.items() if each.pending is not None)

    def schedule(
        self,
        key: Hashable,
        problem: Problem,
        exact: Schedule,
        lead: int | None,
        progress: Progress | None,
    ) -> Schedule:
        """The schedule to begin with: the exact one, or one that rounds maps and is faster."""
        allowed = {} if self.limit is None else lossy_forms(exact.graph, self.limit)
        if not allowed:
            return exact
        self._by_key[key] = _Rounding(exact, allowed)
        rounding = problem.rounding(first_forms(allowed), exact)
        return rounding.schedule(AUTO, lead=lead, progress=progress)

    def lossy(self, key: Hashable) -> dict[str, Form]:
        """The codecs that may round maps in the next plan for `key`."""
        found = self._by_key.get(key)
        return {} if found is None else first_forms(found.allowed)

    def permits(self, key: Hashable, schedule: Schedule) -> bool:
        """Whether a schedule for `key` has none of the codecs that were dropped since."""
        found, rounding = self._by_key.get(key), schedule.plan.rounding
        return found is None or all(
            form in found.allowed.get(name, ()) for name, form in rounding.items()
        )

    def is_due(self, key: Hashable, runner: Runner) -> bool:
        """Whether the next step of the runner is to be measured before it updates parameters."""
        found = self._by_key.get(key)
        if found is None or not runner.schedule.plan.rounded:
            return False
        return found.measured is not runner or found.steps >= self.every

    def follow(self, key: Hashable) -> None:
        """Note a step that was run."""
        if key in self._by_key:
            self._by_key[key].steps += 1

    def report(self, key: Hashable) -> RoundingReport | None:
        """What was measured last for `key`."""
        found = self._by_key.get(key)
        return None if found is None else found.report

    def note(self, key: Hashable, runner: Runner, verdict: Verdict) -> Schedule | None:
        """Note what was measured; returns the exact schedule where it is over the limit.

        The codecs of the maps that cause it are dropped, and a warning says so.
        """
        assert self.limit is not None
        found, plan = self._by_key[key], runner.schedule.plan
        rounded = plan.rounding
        dropped = tuple(
            DroppedCode(name, rounded[name], *worst) for name, worst in verdict.dropped.items()
        )
        before = found.report
        known = (before.dropped, before.measured) if before else ((), 0)
        counts = (*known[0], *dropped), known[1] + 1
        found.report = RoundingReport(self.limit, verdict.errors, rounded, *counts)
        found.steps = 0
        if not dropped:
            found.measured = runner
            return None
        for each in dropped:
            forms = found.allowed.get(each.buffer, ())
            found.allowed[each.buffer] = tuple(_left(forms, each, self.limit))
        _warn(dropped, self.limit)
        return found.exact

    def ask(self, key: Hashable, costs: Costs, lead: int | None, host_budget: int | None) -> None:
        """Have a plan for `key` made with the codecs that are left, if any."""
        found = self._by_key[key]
        self._cancel(found)
        exact, lossy = found.exact, first_forms(found.allowed)
        if not lossy:
            return

        def job() -> partial[Schedule | None]:
            schedule = replace(exact, graph=sendable(exact.graph))
            limits = lead, host_budget, self.paged
            return partial(replan_rounding, RoundingRequest(schedule, costs, lossy, *limits))

        found.pending = Background(job)

    def answer(self, key: Hashable, present: Schedule, costs: Costs) -> Schedule | None:
        """The new schedule for `key`, once; None while there is none, or none that is faster."""
        found = self._by_key.get(key)
        if found is None or found.pending is None or not found.pending.done:
            return None
        background, found.pending = found.pending, None
        if warned_of_failure(background, "with the codecs that are left"):
            return None
        made = background.result()
        if made is None or simulate(made, costs).step_s >= simulate(present, costs).step_s:
            return None
        return replace(made, graph=present.graph, host_budget_nbytes=present.host_budget_nbytes)

    def wait(self) -> None:
        """Wait until no plan is being made any more."""
        for each in self._by_key.values():
            if each.pending is not None:
                each.pending.error()

    def forget(self, key: Hashable) -> None:
        """Forget the plans for `key`, and drop the one being made."""
        found = self._by_key.pop(key, None)
        if found is not None:
            self._cancel(found)

    def drop_all(self) -> None:
        """Forget all plans and stop making new ones."""
        for key in tuple(self._by_key):
            self.forget(key)

    def _cancel(self, found: _Rounding) -> None:
        if found.pending is not None:
            found.pending.cancel()
            found.pending = None


def _left(forms: Sequence[Form], dropped: DroppedCode, limit: float) -> Iterator[Form]:
    """The codecs that round less than the dropped one, to an error in proportion within the limit.

    All that round less where the error is not known.
    """
    for form in forms:
        share = ROUNDING[form] / ROUNDING[dropped.form]
        if share < 1 and (isnan(dropped.error) or share * dropped.error <= limit):
            yield form


def _warn(dropped: tuple[DroppedCode, ...], limit: float) -> None:
    judged = [each for each in dropped if each.parameter]
    worst = max(judged or dropped, key=lambda each: each.error)
    warnings.warn(
        f"the codecs of {len(dropped)} maps are dropped, because a gradient is wrong by more than "
        f"{limit:.2%} (the worst is {worst}). Training goes on with exact gradients; a plan with "
        "the codecs that are left is being made",
        RuntimeWarning,
        stacklevel=2,
    )

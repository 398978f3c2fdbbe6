"""New plans: those that are made beside training, from measured steps, counts and gradients."""

from collections.abc import Hashable

from ..planner.timing.calibrate import Calibration
from .code_counts import CodeCount, CodeCounts
from .engine_request import EngineRequest
from .replan_workers import Replanner
from .rounding_plans import RoundingPlans, RoundingReport


class NewPlans:
    """The new plans of an engine by the key of their runner, by what they follow from.

    Arenas may lie in pages where `paged`.
    """

    def __init__(self, requested: EngineRequest, *, paged: bool) -> None:
        self.measured = Replanner(paged=paged)
        self.counts = CodeCounts()
        self.rounding = RoundingPlans(requested.allowed, requested.check_every, paged)
        self._all = self.measured, self.counts, self.rounding

    @property
    def pending(self) -> tuple[Hashable, ...]:
        """The keys of the plans that are being made, or wait for the step that takes them over."""
        return tuple(dict.fromkeys(key for plans in self._all for key in plans.pending))

    def feedback(self, key: Hashable) -> Calibration | None:
        """The step that was measured last for `key` beside its prediction."""
        return self.measured.feedback(key)

    def code_counts(self, key: Hashable) -> tuple[CodeCount, ...]:
        """The most values of each packed code in the steps of the present plan for `key`."""
        return self.counts.of(key)

    def rounding_report(self, key: Hashable) -> RoundingReport | None:
        """What was measured last of gradients that follow from rounded maps, for `key`."""
        return self.rounding.report(key)

    def wait(self) -> None:
        """Wait until no plan is being made any more."""
        for plans in self._all:
            plans.wait()

    def forget(self, key: Hashable) -> None:
        """Forget what is known for `key`, and drop the plans being made."""
        for plans in self._all:
            plans.forget(key)

    def drop_all(self) -> None:
        """Stop watching steps and making plans anew."""
        for plans in self._all:
            plans.drop_all()

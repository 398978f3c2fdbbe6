"""Code counts: how many values the packed codes of steps had, and plans with room for them.

Each code of a step is counted on the device. The host does not wait: behind every step the counts
are copied into pinned memory. Where heads had no room for all values, a worker makes the plan anew.
"""

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from ..planner.capacities import CapacityRequest, CountedCode, counted_codes, replan_capacities
from ..planner.ir.costs import Costs
from ..planner.ir.schedule import Schedule
from ..planner.replan import sendable
from ..runtime.runner import Runner
from ..workers.background import Background
from .replan_workers import warned_of_failure


@dataclass(frozen=True, slots=True)
class CodeCount:
    """The most values that a packed code had in a step so far."""

    code: CountedCode
    count: int

    @property
    def spilled(self) -> int:
        """The values for which the head had no room."""
        return max(0, self.count - self.code.capacity)

    @property
    def density(self) -> float:
        return self.count / self.code.values


class _Counted:
    """The counts of the steps of one runner."""

    def __init__(self, runner: Runner) -> None:
        self.runner, self.asked = runner, False
        self.codes = counted_codes(runner.schedule)
        self._known = torch.zeros_like(
            runner.counts, device="cpu", pin_memory=runner.counts.is_cuda
        )
        self._most = torch.zeros_like(self._known)
        self._room = torch.tensor([code.capacity for code in self.codes], dtype=torch.int32)

    def follow(self) -> None:
        """Copy the counts to the host, after the work issued so far; call after each step."""
        self._gather()
        self._known.copy_(self.runner.counts, non_blocking=True)
        self._gather()

    def _gather(self) -> None:
        torch.maximum(self._most, self._known, out=self._most)

    def counts(self) -> tuple[int, ...]:
        """The most values of each code, in all steps issued."""
        most = torch.maximum(self._most, self.runner.counts.cpu())
        return tuple(most.tolist())

    def spills(self) -> bool:
        """Whether a step that the host knows of had more values than a head has room for."""
        return bool((self._most > self._room).any())


@dataclass(frozen=True, slots=True)
class _Pending:
    cause: Schedule
    background: Background[Schedule | None]


class CodeCounts:
    """The counts of packed codes by the key of their runner, and the plans that follow."""

    def __init__(self) -> None:
        self._counted: dict[Hashable, _Counted] = {}
        self._pending: dict[Hashable, _Pending] = {}

    @property
    def pending(self) -> tuple[Hashable, ...]:
        """The keys of the new plans that are being made."""
        return tuple(self._pending)

    def follow(self, key: Hashable, runner: Runner, costs: Costs, host_budget: int | None) -> None:
        """Note the counts of a step; where values spilled, have a plan made with room for them."""
        if not runner.schedule.num_counts:
            return
        counted = self._counted.get(key)
        if counted is None or counted.runner is not runner:
            counted = self._counted[key] = _Counted(runner)
        counted.follow()
        if counted.spills() and not counted.asked and key not in self._pending:
            counted.asked = True
            self._warn(counted)
            self._ask(key, counted, costs, host_budget)

    def _warn(self, counted: _Counted) -> None:
        found = [each for each in _code_counts(counted) if each.spilled]
        worst = max(found, key=lambda each: each.spilled / each.code.values)
        warnings.warn(
            f"{len(found)} of {len(counted.codes)} packed codes of a step had more values than "
            f"planned: {worst.code.buffer} section {worst.code.section} had {worst.count:,}, and "
            f"room for {worst.code.capacity:,}. The others went to the host and back; none is "
            "lost. A plan with more room is being made",
            RuntimeWarning,
            stacklevel=2,
        )

    def _ask(self, key: Hashable, counted: _Counted, costs: Costs, host_budget: int | None) -> None:
        cause, counts = counted.runner.schedule, counted.counts()

        def job() -> partial[Schedule | None]:
            schedule = replace(cause, graph=sendable(cause.graph))
            return partial(replan_capacities, CapacityRequest(schedule, costs, counts, host_budget))

        self._pending[key] = _Pending(cause, Background(job))

    def answer(self, key: Hashable, present: Schedule) -> Schedule | None:
        """The new schedule for `key`, once; None while there is none.

        Where the worker failed, a warning says so. An answer to another schedule than the present
        one is dropped.
        """
        pending = self._pending.get(key)
        if pending is None or not pending.background.done:
            return None
        del self._pending[key]
        if warned_of_failure(pending.background, "with room for all values of its codes"):
            return None
        found = pending.background.result()
        if found is None or pending.cause is not present:
            return None
        host_budget = present.host_budget_nbytes
        return replace(found, graph=present.graph, host_budget_nbytes=host_budget)

    def of(self, key: Hashable) -> tuple[CodeCount, ...]:
        """The most values of each packed code in the steps of the present plan for `key`."""
        counted = self._counted.get(key)
        return () if counted is None else _code_counts(counted)

    def wait(self) -> None:
        """Wait until no plan is being made any more."""
        for pending in self._pending.values():
            pending.background.error()

    def forget(self, key: Hashable) -> None:
        """Forget the counts for `key`, and drop the plan being made."""
        self._counted.pop(key, None)
        pending = self._pending.pop(key, None)
        if pending is not None:
            pending.background.cancel()

    def drop_all(self) -> None:
        """Forget all counts and stop making plans anew."""
        for key in {*self._counted, *self._pending}:
            self.forget(key)


def _code_counts(counted: _Counted) -> tuple[CodeCount, ...]:
    counts: Sequence[int] = counted.counts()
    return tuple(CodeCount(*each) for each in zip(counted.codes, counts, strict=True))

"""The swap problem: sections of a skeleton offloaded, their steps ordered, placed and simulated."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TypeAlias

import numpy as np

from ...errors import HostMemoryError
from ...placement import ALIGNMENT
from ...placement.cuda_blocks import usable_nbytes
from ..ir.schedule import Schedule
from ..lowering.arena import ArenaLayout, place_arena_within
from ..lowering.emit import emit_schedule
from ..lowering.idle import IdleInterval, dirty
from ..lowering.limits import Array, FragmentationError, MemoryLimit, Unplaced
from ..lowering.list_scheduler import Item
from ..lowering.timetable import Timetable, schedule_within
from ..problem import GraphProblem
from ..timing.simulate import simulate
from .skeleton import Skeleton
from .soft_placement import placed_before_ordering, retried

WORK = 20_000  # sections of maps and passes in all plans that are placed: 20 of VGG-16, 5 s
SMALL = 100  # trials: a network that affords so many is small, and is searched more thoroughly

Key: TypeAlias = tuple[Skeleton, frozenset[tuple[str, int, int]], tuple[Item, ...]]


@dataclass(frozen=True, slots=True)
class ScheduleTrial:
    """A choice of what to offload, and the order of its steps."""

    skeleton: Skeleton
    moved: tuple[IdleInterval, ...]  # idle intervals in which sections are offloaded
    caps: MemoryLimit  # bytes at once by launch
    steps: Timetable

    @property
    def seconds(self) -> float:
        """The predicted seconds of a step."""
        return self.steps.seconds


@dataclass(frozen=True, slots=True)
class EvaluatedTrial:
    """The schedule of a trial, and the simulated seconds of its step."""

    trial: ScheduleTrial
    schedule: Schedule
    seconds: float


def best_of(found: Iterable[EvaluatedTrial | None]) -> EvaluatedTrial | None:
    """The one of the fewest seconds; None where there is none."""
    return min(filter(None, found), key=attrgetter("seconds"), default=None)


class SwapProblem:
    """Which sections to offload in a problem, by a policy. It keeps the schedules made so far."""

    def __init__(self, problem: GraphProblem, policy: str) -> None:
        assert problem.limits.arena is not None, "without a limit nothing leaves"
        self.graph, self.costs, self.limits = problem.graph, problem.costs, problem.limits
        self.room = problem.limits.arena
        self._policy = policy
        self._compute_s: dict[Skeleton, float] = {}
        self._made: dict[Key, EvaluatedTrial | Unplaced | None] = {}

    def caps(self, skeleton: Skeleton) -> Array:
        """The arena's bytes for each launch of the skeleton."""
        return np.full(skeleton.needed.shape, usable_nbytes(self.room))

    @property
    def most_trials(self) -> int:
        """How many plans a search may order."""
        sections = sum(buffer.num_sections for buffer in self.graph.buffers.values())
        return WORK // (sections + len(self.graph.passes))

    @property
    def small(self) -> bool:
        """Whether all skeletons are placed, and more is tried of each."""
        return self.most_trials >= SMALL

    def compute_s(self, skeleton: Skeleton) -> float:
        """The seconds of the skeleton's launches."""
        if skeleton not in self._compute_s:
            self._compute_s[skeleton] = skeleton.unbound.compute_s(self.costs)
        return self._compute_s[skeleton]

    def lower_bound_s(self, skeleton: Skeleton, moved: Sequence[IdleInterval]) -> float:
        """Seconds that no step takes less than with these sections offloaded.

        The most of the launches, the copies of one direction, and those of both on a shared link.
        """
        link, lanes = self.costs.link, (list(dirty(moved)), moved)
        ways = [
            sum(gap.nbytes for gap in gaps) / rate
            for gaps, rate in zip(lanes, (link.to_host, link.to_device), strict=True)
        ]
        both = link.to_host_duplex / link.to_host + link.to_device_duplex / link.to_device
        lanes_s = (len(gaps) * link.latency_s + s for gaps, s in zip(lanes, ways, strict=True))
        return max(self.compute_s(skeleton), *lanes_s, sum(ways) / max(1.0, both))

    def may_fit(self, skeleton: Skeleton, moved: Sequence[IdleInterval]) -> bool:
        """Whether the sections that stay may have a placement."""
        excess = skeleton.aligned_needed - usable_nbytes(self.room) - (ALIGNMENT - 1)
        for gap in moved:
            excess[gap.last + 1 : gap.next] -= skeleton.aligned_nbytes(gap)
        return not (excess > 0).any()

    def trial(
        self,
        skeleton: Skeleton,
        moved: Sequence[IdleInterval] | None,
        caps: MemoryLimit,
        *,
        grain: int = 1,
    ) -> ScheduleTrial | None:
        """The trial of `moved`; None where that is None or its steps have no order.

        The order counts every section as a multiple of `grain` bytes.
        """
        if moved is None or not _leaves_room(skeleton, moved, caps):
            return None
        plan = skeleton.unbound.offloading(moved, self._policy)
        found = schedule_within(self.graph, plan, self.costs, caps, grain=grain)
        return None if found is None else ScheduleTrial(skeleton, tuple(moved), caps, found)

    def aligned_trial(
        self, skeleton: Skeleton, moved: Sequence[IdleInterval]
    ) -> ScheduleTrial | None:
        """The trial of `moved` in which every section fills its last alignment."""
        return self.trial(skeleton, moved, self.room + ALIGNMENT - 1, grain=ALIGNMENT)

    def placed_after_ordering(self, trial: ScheduleTrial) -> EvaluatedTrial | None:
        """The schedule of a trial with offsets for its order; None where the host has no room.

        Trials of the same order share one schedule. Raises FragmentationError where bytes find no
        place.
        """
        away = frozenset((gap.buffer, gap.section, gap.last) for gap in trial.moved)
        key = trial.skeleton, away, trial.steps.items
        if key not in self._made:
            try:
                arena = place_arena_within(self.graph, trial.steps, self.room)
                self._made[key] = self._simulated(trial, trial.steps, arena)
            except FragmentationError as error:
                self._made[key] = error.unplaced
        made = self._made[key]
        if isinstance(made, tuple):
            raise FragmentationError(made)
        return made and EvaluatedTrial(
            trial, replace(made.schedule, plan=trial.steps.plan), made.seconds
        )

    def placed_before_ordering(self, trial: ScheduleTrial) -> EvaluatedTrial | None:
        """The schedule of a trial ordered anew once its sections have offsets.

        None where the host has no room. Raises FragmentationError where bytes find no place.
        """
        places = placed_before_ordering(
            self.graph, trial.steps, self.costs, usable_nbytes(self.room)
        )
        return self._simulated(trial, *places)

    def retried(self, trial: ScheduleTrial, tries: int) -> EvaluatedTrial | None:
        """The fastest such schedule of so many tries with other offsets; None if none fits."""
        room = usable_nbytes(self.room)
        places = retried(self.graph, trial.steps, self.costs, room, tries=tries)
        return places and self._simulated(trial, *places)

    def _simulated(
        self, trial: ScheduleTrial, steps: Timetable, arena: ArenaLayout
    ) -> EvaluatedTrial | None:
        """The schedule of these steps in the arena; None where the host has no room."""
        budgets = {"budget": self.limits.device, "host_budget": self.limits.host}
        try:
            schedule = emit_schedule(self.graph, steps, arena, **budgets)
        except HostMemoryError:
            return None
        return EvaluatedTrial(trial, schedule, simulate(schedule, self.costs).step_s)


def _leaves_room(skeleton: Skeleton, moved: Sequence[IdleInterval], caps: MemoryLimit) -> bool:
    """Whether launches find their bytes under the caps with these sections offloaded."""
    excess = skeleton.needed - caps
    for gap in moved:
        excess[gap.last + 1 : gap.next] -= gap.nbytes
    return not (excess > 0).any()

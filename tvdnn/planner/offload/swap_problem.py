"""The swap problem: sections of a skeleton offloaded, their steps ordered, placed and simulated."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import TypeAlias

from ...errors import HostMemoryError
from ...graph import Form
from ...placement import ALIGNMENT, aligned
from ...placement.cuda_blocks import usable_nbytes
from ..ir.plan import HOST
from ..ir.schedule import Schedule, counts_nbytes
from ..lowering.arena_layout import ArenaLayout, place_arena_within
from ..lowering.emit import emit_schedule
from ..lowering.idle import IdleInterval, dirty
from ..lowering.launch_limits import Array, FragmentationError, MemoryLimit, Unplaced
from ..lowering.list_scheduler import Item, required_nbytes
from ..lowering.program import LiveInterval
from ..lowering.spill import with_spills
from ..lowering.timetable import Timetable, schedule_within
from ..problem import GraphProblem
from ..recompute.skeleton import Skeleton
from ..timing.simulate import simulate
from .belady import belady_choice
from .soft_placement import SoftPlacement

WORK = 20_000  # sections of maps and passes in all plans that are placed: 20 of VGG-16, 5 s
SMALL = 100  # trials: a network that affords so many is small, and is searched more thoroughly

Chooser: TypeAlias = Callable[[MemoryLimit], Sequence[IdleInterval] | None]
Key: TypeAlias = tuple[frozenset[tuple[str, int, Form, int]], tuple[Item, ...]]


@dataclass(frozen=True, slots=True)
class ScheduleTrial:
    """A choice of what to offload, and the order of its steps."""

    swap: "SwapProblem"
    offloaded: tuple[IdleInterval, ...]
    limits: MemoryLimit
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
    """Which sections of a skeleton to offload, by a policy. It keeps the schedules made so far."""

    def __init__(self, problem: GraphProblem, skeleton: Skeleton, policy: str) -> None:
        assert problem.budgets.arena is not None, "without a limit nothing leaves"
        self.skeleton, self.costs, self.budgets = skeleton, problem.costs, problem.budgets
        counts = counts_nbytes(len(skeleton.program.counts))
        self.capacity = problem.budgets.arena - counts
        self.usable = usable_nbytes(self.capacity)
        self.most_trials = problem.affordable_plans(WORK)
        self._graph, self._policy = problem.graph, policy
        self._made: dict[Key, EvaluatedTrial | Unplaced | None] = {}

    @property
    def small(self) -> bool:
        """Whether all skeletons are placed, and more is tried of each."""
        return self.most_trials >= SMALL

    @cached_property
    def compute_s(self) -> float:
        """The seconds of the skeleton's launches."""
        return self.skeleton.compute_s(self.costs)

    def idle(self, limits: MemoryLimit) -> list[IdleInterval]:
        """Intervals between forward and backward where they suffice for the limits, else all."""
        trips = self.skeleton.forward_backward_idle
        suffice = belady_choice(self.skeleton.required, trips, limits) is not None
        return trips if suffice else self.skeleton.all_idle

    def greedy(self, limits: MemoryLimit) -> Sequence[IdleInterval] | None:
        """Belady's choice of what to offload."""
        return belady_choice(self.skeleton.required, self.idle(limits), limits)

    def lower_bound_s(self, offloaded: Sequence[IdleInterval]) -> float:
        """Seconds that no step takes less than with these sections offloaded.

        The most of the launches, the copies of one direction, and those of both on a shared link.
        """
        link, lanes = self.costs.links[HOST], (list(dirty(offloaded)), offloaded)
        ways = [
            sum(idle.nbytes for idle in copied) / rate
            for copied, rate in zip(lanes, (link.out, link.back), strict=True)
        ]
        both = link.out_duplex / link.out + link.back_duplex / link.back
        lanes_s = (len(copied) * link.latency_s + s for copied, s in zip(lanes, ways, strict=True))
        return max(self.compute_s, *lanes_s, sum(ways) / max(1.0, both))

    def may_fit(self, offloaded: Sequence[IdleInterval]) -> bool:
        """Whether the sections that stay may have a placement."""
        least = self._aligned_required - self.skeleton.freed(offloaded, self._aligned_nbytes)
        return not (least > self.usable + ALIGNMENT - 1).any()

    @cached_property
    def _aligned_required(self) -> Array:
        """A lower bound of the bytes that each launch requires with all offsets aligned."""
        program = self.skeleton.program
        return required_nbytes(program, map(self._aligned_nbytes, program.intervals))

    def _aligned_nbytes(self, item: IdleInterval | LiveInterval) -> int:
        """The fewest bytes that the section takes up to the next one.

        The uppermost section, and one beside others in a run, need not fill its last alignment.
        """
        if (item.buffer, item.section, item.form) in self._in_runs:
            return item.nbytes - (ALIGNMENT - 1)
        return aligned(item.nbytes)

    @cached_property
    def _in_runs(self) -> frozenset[tuple[str, int, Form]]:
        """Sections that a launch wants side by side with others."""
        program = self.skeleton.program
        runs = (group for group in program.groups if len(group) > 1)
        lives = (program.intervals[number] for group in runs for number, _ in group)
        return frozenset((live.buffer, live.section, live.form) for live in lives)

    def trial(
        self,
        offloaded: Sequence[IdleInterval] | None,
        limits: MemoryLimit,
        *,
        grain: int = 1,
        patient: bool = False,
    ) -> ScheduleTrial | None:
        """The trial of a choice; None where that is None or its steps have no order.

        The order counts every section as a multiple of `grain` bytes. `patient` is the list
        scheduler's.
        """
        skeleton = self.skeleton
        if offloaded is None or (skeleton.required - skeleton.freed(offloaded) > limits).any():
            return None
        plan = skeleton.offloading(offloaded, self._policy)
        plan = with_spills(self._graph, plan, self.budgets)
        found = schedule_within(self._graph, plan, self.costs, limits, grain=grain, patient=patient)
        return None if found is None else ScheduleTrial(self, tuple(offloaded), limits, found)

    def aligned_trial(self, offloaded: Sequence[IdleInterval]) -> ScheduleTrial | None:
        """The trial of a choice in which every section fills its last alignment."""
        return self.trial(offloaded, self.capacity + ALIGNMENT - 1, grain=ALIGNMENT)

    def placed_after_ordering(self, trial: ScheduleTrial) -> EvaluatedTrial | None:
        """The schedule of a trial with offsets for its order; None where the host has no room.

        Trials of the same order share one schedule. Raises FragmentationError where bytes find no
        place.
        """
        away = frozenset((*idle.key, idle.last) for idle in trial.offloaded)
        key = away, trial.steps.items
        if key not in self._made:
            try:
                arena = place_arena_within(trial.steps, self.capacity)
                self._made[key] = self.evaluated(trial, trial.steps, arena)
            except FragmentationError as error:
                self._made[key] = error.unplaced
        made = self._made[key]
        if isinstance(made, tuple):
            raise FragmentationError(made)
        plan = trial.steps.program.plan
        return made and EvaluatedTrial(trial, replace(made.schedule, plan=plan), made.seconds)

    def placed_before_ordering(self, trial: ScheduleTrial) -> EvaluatedTrial | None:
        """The schedule of a trial ordered anew once its sections have offsets.

        None where the host has no room. Raises FragmentationError where bytes find no place.
        """
        placement = SoftPlacement(trial.steps, self.costs, self.usable)
        return self.evaluated(trial, *placement.placed())

    def retried(self, trial: ScheduleTrial, tries: int) -> EvaluatedTrial | None:
        """The fastest such schedule of so many tries with other offsets; None if none fits."""
        placed = SoftPlacement(trial.steps, self.costs, self.usable).retried(tries)
        return placed and self.evaluated(trial, *placed)

    def evaluated(
        self, trial: ScheduleTrial, steps: Timetable, arena: ArenaLayout
    ) -> EvaluatedTrial | None:
        """The schedule of these steps in the arena; None where the host has no room."""
        try:
            schedule = emit_schedule(steps, arena, self.budgets)
        except HostMemoryError:
            return None
        return EvaluatedTrial(trial, schedule, simulate(schedule, self.costs).step_s)


def placed_if_any(
    make: Callable[[ScheduleTrial], EvaluatedTrial | None], trial: ScheduleTrial | None
) -> EvaluatedTrial | None:
    """The schedule that `make` gives for the trial; None where bytes find no place."""
    try:
        return None if trial is None else make(trial)
    except FragmentationError:
        return None

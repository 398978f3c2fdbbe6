"""Trials: sections of a site spent away, ordered to predict a step's time, placed and simulated."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TypeAlias

import numpy as np

from ...errors import HostMemoryError
from ...graph import Graph
from ...placement import ALIGNMENT
from ...placement.cuda_blocks import usable_nbytes
from ..ir.costs import Costs
from ..ir.schedule import Schedule
from ..lowering.arena import ArenaLayout, place_arena_within
from ..lowering.emit import emit_schedule
from ..lowering.idle import IdleInterval, dirty
from ..lowering.limits import Array, FragmentationError, MemoryLimit, Unplaced
from ..lowering.list_scheduler import Item
from ..lowering.timetable import Timetable, schedule_within
from ..timing.simulate import simulate
from .skeleton import Site
from .soft_placement import resettled, settled

WORK = 20_000  # sections of maps and passes in all plans that are placed: 20 of VGG-16, 5 s
SMALL = 100  # trials, from which on a network is small: wherever its plan may be, it is looked for

Key: TypeAlias = tuple[Site, frozenset[tuple[str, int, int]], tuple[Item, ...]]


@dataclass(frozen=True, slots=True)
class Trial:
    """Gaps of a site spent away, and the order of the steps with at most `caps` bytes by each."""

    site: Site
    moved: tuple[IdleInterval, ...]
    caps: MemoryLimit
    steps: Timetable

    @property
    def seconds(self) -> float:
        """What a step is predicted to take."""
        return self.steps.seconds


@dataclass(frozen=True, slots=True)
class Found:
    """The schedule of a trial, and what its step takes as simulated."""

    trial: Trial
    schedule: Schedule
    seconds: float


def fastest(found: Iterable[Found | None]) -> Found | None:
    """That whose step takes least; None where there is none."""
    return min(filter(None, found), key=attrgetter("seconds"), default=None)


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be planned, and inside which budgets."""

    graph: Graph
    costs: Costs
    policy: str
    budget: int
    host_budget: int | None
    _compute_s: dict[Site, float] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _made: dict[Key, Found | Unplaced | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def room(self) -> int:
        return self.budget - self.graph.fixed_nbytes

    def caps(self, site: Site) -> Array:
        """What the site's launches may have at once, by each."""
        return np.full(site.needed.shape, usable_nbytes(self.room))

    @property
    def most_trials(self) -> int:
        """How many plans are ordered."""
        sections = sum(buffer.num_sections for buffer in self.graph.buffers.values())
        return WORK // (sections + len(self.graph.passes))

    @property
    def small(self) -> bool:
        """Whether all sites are placed, and more is tried of each."""
        return self.most_trials >= SMALL

    def compute_s(self, site: Site) -> float:
        """What the site's launches take."""
        if site not in self._compute_s:
            self._compute_s[site] = site.draft.compute_s(self.costs)
        return self._compute_s[site]

    def least_s(self, site: Site, moved: Sequence[IdleInterval]) -> float:
        """What no step takes less than in which these gaps are spent away.

        Its launches, the copies of one way, and the copies of both as far as they share the link.
        """
        link, lanes = self.costs.link, (list(dirty(moved)), moved)
        ways = [
            sum(gap.nbytes for gap in gaps) / rate
            for gaps, rate in zip(lanes, (link.to_host, link.to_device), strict=True)
        ]
        both = link.to_host_duplex / link.to_host + link.to_device_duplex / link.to_device
        lanes_s = (len(gaps) * link.latency_s + s for gaps, s in zip(lanes, ways, strict=True))
        return max(self.compute_s(site), *lanes_s, sum(ways) / max(1.0, both))

    def may_fit(self, site: Site, moved: Sequence[IdleInterval]) -> bool:
        """Whether there may be a placement of what is left while these gaps are spent away."""
        excess = site.placed - usable_nbytes(self.room) - (ALIGNMENT - 1)
        for gap in moved:
            excess[gap.last + 1 : gap.next] -= site.placed_nbytes(gap)
        return not (excess > 0).any()

    def trial(
        self, site: Site, moved: Sequence[IdleInterval] | None, caps: MemoryLimit, *, grain: int = 1
    ) -> Trial | None:
        """The trial of `moved`, if any; None where its steps have no order.

        That counts every section as a multiple of `grain` bytes.
        """
        if moved is None or not _leaves_room(site, moved, caps):
            return None
        plan = site.draft.moving(moved, self.policy)
        found = schedule_within(self.graph, plan, self.costs, caps, grain=grain)
        return None if found is None else Trial(site, tuple(moved), caps, found)

    def aligned(self, site: Site, moved: Sequence[IdleInterval]) -> Trial | None:
        """The trial of `moved` in which every section takes the bytes up to the next base."""
        return self.trial(site, moved, self.room + ALIGNMENT - 1, grain=ALIGNMENT)

    def found(self, trial: Trial) -> Found | None:
        """The schedule of a trial, None where the host has no room for what leaves.

        It is made once of all trials whose steps come in one order. Raises FragmentationError
        where its bytes find no place.
        """
        away = frozenset((gap.buffer, gap.section, gap.last) for gap in trial.moved)
        key = trial.site, away, trial.steps.items
        if key not in self._made:
            try:
                arena = place_arena_within(self.graph, trial.steps, self.room)
                self._made[key] = self._simulated(trial, trial.steps, arena)
            except FragmentationError as error:
                self._made[key] = error.unplaced
        made = self._made[key]
        if isinstance(made, tuple):
            raise FragmentationError(made)
        return made and Found(trial, replace(made.schedule, plan=trial.steps.plan), made.seconds)

    def settled(self, trial: Trial) -> Found | None:
        """The schedule of a trial in places that are free when their bytes come.

        None where the host has no room for what leaves. Raises FragmentationError where there
        are no such places.

        """
        places = settled(self.graph, trial.steps, self.costs, usable_nbytes(self.room))
        return self._simulated(trial, *places)

    def resettled(self, trial: Trial, tries: int) -> Found | None:
        """The schedule of a trial in the best such places of so many tries; None if none fits."""
        room = usable_nbytes(self.room)
        places = resettled(self.graph, trial.steps, self.costs, room, tries=tries)
        return places and self._simulated(trial, *places)

    def _simulated(self, trial: Trial, steps: Timetable, arena: ArenaLayout) -> Found | None:
        """The schedule of a trial by these steps in the arena; None where the host has no room."""
        budgets = {"budget": self.budget, "host_budget": self.host_budget}
        try:
            schedule = emit_schedule(self.graph, steps, arena, **budgets)
        except HostMemoryError:
            return None
        return Found(trial, schedule, simulate(schedule, self.costs).step_s)


def _leaves_room(site: Site, moved: Sequence[IdleInterval], caps: MemoryLimit) -> bool:
    """Whether launches find their bytes under the caps while these gaps are spent away."""
    excess = site.needed - caps
    for gap in moved:
        excess[gap.last + 1 : gap.next] -= gap.nbytes
    return not (excess > 0).any()

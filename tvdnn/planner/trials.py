"""Trials: sections of a site spent away, ordered to predict a step's time, placed and simulated."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import HostMemoryError
from ..graph import Graph
from ..memory.blocks import usable_nbytes
from .costs import Costs
from .crowding import Array, Caps
from .gaps import Gap
from .lower import Ordered, lower_ordered, ordered
from .policies.tvdnn import Site
from .schedule import Schedule
from .simulate import simulate

WORK = 20_000  # sections of maps and passes in all plans that are placed: 20 of VGG-16, 5 s


@dataclass(frozen=True, slots=True)
class Trial:
    """Gaps of a site spent away, and the order of the steps with at most `caps` bytes by each."""

    site: Site
    moved: tuple[Gap, ...]
    caps: Caps
    steps: Ordered

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


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be planned, and inside which budgets."""

    graph: Graph
    costs: Costs
    policy: str
    budget: int
    host_budget: int | None

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

    def trial(self, site: Site, moved: Sequence[Gap] | None, caps: Caps) -> Trial | None:
        """The trial of `moved`, if any; None where its steps have no order."""
        if moved is None:
            return None
        plan = site.draft.moving(moved, self.policy)
        found = ordered(self.graph, plan, self.costs, caps)
        return None if found is None else Trial(site, tuple(moved), caps, found)

    def found(self, trial: Trial) -> Found | None:
        """The schedule of a trial, None where the host has no room for what leaves.

        Raises CrowdedError where its bytes find no place.
        """
        try:
            schedule = lower_ordered(
                self.graph, trial.steps, budget=self.budget, host_budget=self.host_budget
            )
        except HostMemoryError:
            return None
        return Found(trial, schedule, simulate(schedule, self.costs).step_s)

"""The searches for tvDNN's plans: by greedy choice of what leaves, and by integer programs.

Both try shares of the arena that bytes at once may take, for some must be left to placement, and
order the steps of each to predict its time. Schedules are made of the fastest first, until some
find a place for their bytes; the simulator tells which of these is best.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import TypeAlias

from ..errors import HostMemoryError
from ..graph import Graph
from .costs import Costs
from .gaps import Gap
from .lower import CrowdedError, estimate, lower_under
from .plan import Plan
from .policies.tvdnn import Site, farthest, sites
from .schedule import Schedule
from .simulate import simulate

FIRST_SHARE = 0.97
MOST_SITES = 2  # whose plans are placed: those of the fastest steps at the first share
WORK = 20_000  # sections of maps and passes in all plans that are placed: 20 of VGG-16, 5 s
MOST_TRIALS = 7  # of a site, to find the most bytes at once that find a place
LITTLE = 0.01  # of the arena, for which closing in on them ends
LESS = 0.985  # of a cap, the most of the next where bytes found no place

Chooser: TypeAlias = Callable[[Site, int], Sequence[Gap] | None]


@dataclass(frozen=True, slots=True)
class Trial:
    """Gaps of a site spent away, ordered under `cap`: a plan, and the predicted seconds."""

    site: Site
    moved: tuple[Gap, ...]
    cap: int
    plan: Plan
    seconds: float


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

    @property
    def most_trials(self) -> int:
        """How many plans are ordered."""
        sections = sum(buffer.num_sections for buffer in self.graph.buffers.values())
        return WORK // (sections + len(self.graph.passes))

    def trial(self, site: Site, moved: Sequence[Gap] | None, cap: int) -> Trial | None:
        """The trial of `moved`, if any; None where its steps have no order."""
        if moved is None:
            return None
        plan = site.draft.moving(moved, self.policy)
        found = estimate(self.graph, plan, self.costs, cap, room=self.room, below_s=0.0)
        return None if found is None else Trial(site, tuple(moved), cap, plan, found.seconds)

    def found(self, trial: Trial) -> Found | None:
        """The schedule of a trial, None where the host has no room for what leaves.

        Raises CrowdedError where its bytes find no place.
        """
        try:
            schedule = lower_under(
                self.graph,
                trial.plan,
                self.costs,
                trial.cap,
                budget=self.budget,
                host_budget=self.host_budget,
            )
        except HostMemoryError:
            return None
        return Found(trial, schedule, simulate(schedule, self.costs).step_s)


def heuristic(
    graph: Graph, costs: Costs, *, budget: int, host_budget: int | None = None
) -> Schedule | None:
    """The best schedule of a greedy choice of what leaves; None where none fits.

    It goes through the launches once a trial, and makes fewer trials of deeper networks.
    """
    task = Task(graph, costs, "tvdnn-heuristic", budget, host_budget)
    found = [each for site in _ranked(task) for each in _tightened(task, site, _greedy)]
    best = min(found, key=attrgetter("seconds"), default=None)
    return None if best is None else best.schedule


def _greedy(site: Site, cap: int) -> Sequence[Gap] | None:
    return farthest(site.needed, site.gaps(cap), cap)


def _ranked(task: Task) -> list[Site]:
    """The sites whose steps are predicted to take least, as many as work allows."""
    most = max(1, task.most_trials // 2)
    cap = round(FIRST_SHARE * task.room)
    ground = list(islice(sites(task.graph, task.costs), most))
    if most == 1:
        return ground
    trials = [task.trial(site, _greedy(site, cap), cap) for site in ground]
    ranked = sorted((trial for trial in trials if trial), key=attrgetter("seconds"))
    return [trial.site for trial in ranked[:MOST_SITES]] or ground


def _tightened(task: Task, site: Site, choose: Chooser) -> list[Found]:
    """Schedules of the site, of plans under caps that close in on the highest with a place."""
    found: list[Found] = []
    cap, good, bad = round(LESS * task.room), 0, task.room
    for count in range(MOST_TRIALS):
        if good and (bad - good <= LITTLE * task.room or count >= task.most_trials // MOST_SITES):
            break
        trial = task.trial(site, choose(site, cap), cap)
        if trial is None:
            break
        try:
            schedule = task.found(trial)
        except CrowdedError as error:
            bad = cap
            cap = (good + bad) // 2 if good else round(cap * min(LESS, task.room / error.nbytes))
        else:
            found += [schedule] if schedule else []
            good, cap = cap, (cap + bad) // 2
    return found

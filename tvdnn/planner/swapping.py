"""The searches for tvDNN's plans: by greedy choice of what leaves, and by integer programs.

Both look for the highest cap on bytes at once whose plan finds a place for them, on the sites whose
steps are predicted to take least; the simulator tells which schedule is best.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from math import inf, prod
from operator import attrgetter, itemgetter
from typing import TypeAlias

import numpy as np

from ..graph import Graph
from .costs import Costs
from .crowding import Array, Caps, CrowdedError, narrowed
from .gaps import Gap
from .plan import Standing
from .policies.tvdnn import Site, farthest, sites
from .polish import HOPELESS, polished
from .relaxation import Bundle, Relaxed, SwapProblem, bundles
from .schedule import Schedule
from .trials import Found, Task, Trial

FIRST_SHARE = 0.97
MOST_SITES = 2  # whose plans are placed: those of the fastest steps at the first share
EVERY_SITE = 100  # trials, if there may be so many, all sites are placed
EMPTIED = (1.0, 0.9, 0.8, 0.7)  # caps, where no choice finds a place
MOST_CHOICES = 500  # of a site, up to which all are tried
POLISHED = 4  # trials, of which one is spent on polish where not all sites are placed
NEGLIGIBLE = 0.05  # of the largest section

Chooser: TypeAlias = Callable[[Array], Sequence[Gap] | None]


@dataclass(frozen=True, slots=True)
class Effort:
    """Bounds on one integer program.

    Its seconds, the nodes of its tree, and by what share its answer may miss the optimum.
    """

    time_limit_s: float = 2.0
    nodes: int = 100
    gap: float = 0.002


def heuristic(
    graph: Graph, costs: Costs, *, budget: int, host_budget: int | None = None
) -> Schedule | None:
    """The best schedule of a greedy choice of what leaves; None where none fits.

    It goes through the launches once a trial, and makes fewer trials of deeper networks; where
    there are few choices it tries them all, and polishes the plan of a small network.
    """
    task = Task(graph, costs, "tvdnn-heuristic", budget, host_budget)
    ranked = _ranked(task, list(islice(sites(graph, costs), _most_ranked(task))))
    best = _best(
        each for site in ranked for each in (*_tightened(task, site), *_enumerated(task, site))
    )
    if best is None:
        return None
    small = task.most_trials >= EVERY_SITE
    return (polished(task, best, task.most_trials) if small else best).schedule


def optimal(
    graph: Graph,
    costs: Costs,
    *,
    budget: int,
    host_budget: int | None = None,
    effort: Effort = Effort(),
) -> Schedule | None:
    """The best schedule of integer programs and the greedy choice, polished; None where none fits.

    Its plan tells how near it comes to the relaxed optimum of all sites.
    """
    task = Task(graph, costs, "tvdnn-ilp", budget, host_budget)
    ground = list(sites(graph, costs))
    relaxed = {site: _problem(task, site, task.room).relaxed() for site in ground}
    solved = {site: found for site, found in relaxed.items() if found is not None}
    ranked = sorted(solved, key=lambda site: solved[site].step_s)[: _most_sites(task)]
    found = [[*_programmed(task, site, effort), *_enumerated(task, site)] for site in ranked]
    others = [site for site in _ranked(task, ground[: _most_ranked(task)]) if site not in ranked]
    found += [_tightened(task, site) for site in others]  # so that the heuristic does no better
    if not any(found):
        found = [list(_emptied(task, site)) for site in ranked]
    few = POLISHED if task.most_trials < EVERY_SITE else 1
    tries = task.most_trials // few // max(1, len(ranked))
    best = _best(polished(task, each, tries) for each in map(_best, found) if each)
    if best is None:
        return None
    return _standing(best, min(solved.values(), key=attrgetter("step_s")))


def _best(found: Iterable[Found]) -> Found | None:
    return min(found, key=attrgetter("seconds"), default=None)


def _most_sites(task: Task) -> int:
    """How many sites are placed; none is left out of what is small."""
    return MOST_SITES if task.most_trials < EVERY_SITE else len(list(sites(task.graph, task.costs)))


def _most_ranked(task: Task) -> int:
    """How many sites work allows to order once."""
    return max(1, task.most_trials // 2)


def _ranked(task: Task, ground: list[Site]) -> list[Site]:
    """The sites whose steps are predicted to take least."""
    cap = round(FIRST_SHARE * task.room)
    if len(ground) == 1:
        return ground
    trials = [task.trial(site, _greedy(site, cap), cap) for site in ground]
    ranked = sorted((trial for trial in trials if trial), key=attrgetter("seconds"))
    return [trial.site for trial in ranked[: _most_sites(task)]] or ground


def _greedy(site: Site, caps: Caps) -> Sequence[Gap] | None:
    return farthest(site.needed, site.gaps(caps), caps)


def _tightened(task: Task, site: Site) -> list[Found]:
    """Schedules of the greedy choice under caps whose bytes find a place."""
    return _narrowed(task, site, lambda caps: _greedy(site, caps), task.caps(site))


def _narrowed(
    task: Task, site: Site, choose: Chooser, caps: Array, most: int | None = None
) -> list[Found]:
    """Up to `most` schedules of a choice, under caps lowered where bytes find no place.

    Where there may be many trials, those of the choice with all back late too.
    """
    found: list[Found] = []

    def attempt(caps: Array) -> Found | None:
        trial = task.trial(site, choose(caps), caps)
        if trial is None:
            return None
        try:
            return task.found(trial)
        except CrowdedError:
            late = _placed(task, _late(task, trial)) if task.most_trials >= EVERY_SITE else None
            found.extend([late] if late else [])
            raise

    num_stays = len(site.draft.program.residencies)
    found += filter(None, islice(narrowed(attempt, caps, site.least, num_stays), most))
    return found


def _enumerated(task: Task, site: Site) -> Iterator[Found]:
    """Schedules of any numbers of the last sections of maps, where there are few such choices.

    Negligible maps stay. Made are those schedules whose steps are predicted to take least.
    """
    maps: dict[str, list[Gap]] = {}
    least = NEGLIGIBLE * max((gap.nbytes for gap in site.trips), default=0)
    for gap in site.trips:
        if gap.nbytes > least:
            maps.setdefault(gap.buffer, []).append(gap)
    choices = prod(1 + len(gaps) for gaps in maps.values())
    if choices > min(MOST_CHOICES, task.most_trials):
        return
    options = ([gaps[len(gaps) - n :] for n in range(1 + len(gaps))] for gaps in maps.values())
    chosen = (tuple(chain.from_iterable(choice)) for choice in product(*options))
    trials = (task.trial(site, moved, task.room) for moved in chosen)
    best_s = inf
    for trial in sorted(filter(None, trials), key=attrgetter("seconds")):
        if trial.seconds > HOPELESS * best_s:
            return
        for found in _under_less(task, trial):
            best_s = min(best_s, found.seconds)
            yield found


def _under_less(task: Task, trial: Trial) -> Iterator[Found]:
    """The trial's schedule; where its bytes find no place those under lower caps, or all late."""
    found = _placed(task, trial)
    if found is not None:
        yield found
        return
    caps = [round(share * task.room) for share in EMPTIED[1:]]
    less = [task.trial(trial.site, trial.moved, cap) for cap in caps]
    for each in (*less, *(_late(task, each) for each in (trial, *less) if each)):
        found = _placed(task, each)
        yield from [found] if found else []


def _late(task: Task, trial: Trial) -> Trial | None:
    """The trial with all sections back no earlier than they must, so that fewer are there."""
    moved = [replace(gap, opens=gap.returns) for gap in trial.moved]
    return task.trial(trial.site, moved, trial.caps)


def _placed(task: Task, trial: Trial | None) -> Found | None:
    """The schedule of the trial; None where there is none."""
    try:
        return None if trial is None else task.found(trial)
    except CrowdedError:
        return None


def _emptied(task: Task, site: Site) -> Iterator[Found]:
    """Schedules of the site in which all leaves that is idle between forward and backward, or ever.

    Most bytes find a place then.
    """
    for gaps in (site.trips, [*site.trips, *site.others]):
        for share in EMPTIED:
            trial = task.trial(site, gaps, round(share * task.room))
            found = _placed(task, trial)
            yield from [found] if found else []


def _programmed(task: Task, site: Site, effort: Effort) -> list[Found]:
    """Schedules of the site by the greedy choice, and by the integer program under its caps."""
    found = _tightened(task, site)
    best = _best(found)
    caps = np.broadcast_to(task.caps(site) if best is None else best.trial.caps, site.needed.shape)
    moved = _whole(task, site, caps, effort)
    if moved is None:
        return found
    return found + _narrowed(task, site, lambda caps: _with_more(site, moved, caps), caps, most=1)


def _with_more(site: Site, moved: Sequence[Gap], caps: Caps) -> Sequence[Gap] | None:
    """These gaps, and of the others those that launches need besides under the caps."""
    needed, taken = site.needed.copy(), set(moved)
    for gap in moved:
        needed[gap.last + 1 : gap.back] -= gap.nbytes
    more = farthest(needed, [gap for gap in site.gaps(caps) if gap not in taken], caps)
    return None if more is None else [*moved, *more]


def _whole(task: Task, site: Site, caps: Caps, effort: Effort) -> Sequence[Gap] | None:
    """The sections that leave by the integer program, of each bundle the last."""
    members = bundles(site.gaps(caps))
    program = _program_of(task, site, caps, members)
    counts = program.whole(time_limit_s=effort.time_limit_s, nodes=effort.nodes, gap=effort.gap)
    if counts is None:
        return None
    pairs = zip(members, counts, strict=True)
    return [gap for each, count in pairs for gap in each[len(each) - round(count) :]]


def _problem(task: Task, site: Site, caps: Caps) -> SwapProblem:
    """The problem of a site, in all of whose gaps sections may be away."""
    return _program_of(task, site, caps, bundles([*site.trips, *site.others]))


def _program_of(task: Task, site: Site, caps: Caps, members: Sequence[Bundle]) -> SwapProblem:
    graph, costs, host_budget = task.graph, task.costs, task.host_budget
    program = site.draft.program
    return SwapProblem(graph, program, costs, members, room=caps, host_budget=host_budget)


def _standing(best: Found, relaxed: Relaxed) -> Schedule:
    """The schedule, its plan told how near the optimum it is."""
    gains = dict(sorted(relaxed.gains.items(), key=itemgetter(1), reverse=True))
    standing = Standing(best.seconds, relaxed.step_s, gains)
    return replace(best.schedule, plan=replace(best.schedule.plan, standing=standing))

"""The searches for tvDNN's plans: by greedy choice of what leaves, and by integer programs.

Both look for the highest cap on bytes at once whose plan finds a place for them, first with places
given before the steps are ordered and then after, on the sites whose steps are predicted to take
least; the simulator tells which schedule is best. Which sites those are, and what leaves, is
decided here; `attempts` finds places, and `enumeration` tries all choices where they are few.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from operator import attrgetter, itemgetter

import numpy as np

from ...graph import Graph
from ..ir.costs import Costs
from ..ir.plan import OptimalityReport
from ..ir.schedule import Schedule
from ..lowering.idle import IdleInterval
from ..lowering.limits import MemoryLimit
from ..offload.exhaustive import enumerated
from ..offload.fit import Chooser, fitted, is_tight, placed
from ..offload.ilp import Bundle, Relaxed, SwapProblem, bundles
from ..offload.local_search import WORTH, polished
from ..offload.problem import Found, Task, fastest
from ..offload.skeleton import Site, farthest, sites

FIRST_SHARE = 0.97
RANKED = 10_000  # launches, from which on no more sites are ordered to rank them: 1 s
MOST_SITES = 2  # whose plans are placed: those of the fastest steps at the first share
NEAR = 1.02  # times the least that a site's step may take: near enough
EMPTIED = (1.0, 0.9, 0.8, 0.7)  # caps, where no choice finds a place
SPREAD = tuple(1 - number / 400 for number in range(1, 9))  # of the caps, for an integer program's
SPARING = (0.96, 0.92)  # of the caps, under which the greedy choice is given places as well
MOST_BUNDLES = 1000  # where sections leave again, up to which integer programs are solved in time
POLISHED = 4  # trials, of which one is spent on polish where the network is not small
RESETTLED = 2  # trials, of which one is then spent on places in another order


@dataclass(frozen=True, slots=True)
class Effort:
    """Bounds on one integer program.

    Its seconds, the nodes of its tree, and by what share its answer may miss the optimum. But a
    little above the floor the gap ends it, within some 3 s, so that a plan is the same whatever
    else the machine does; a gap of 0.002 takes up to 16 s for plans that are no faster.
    """

    time_limit_s: float = 5.0
    nodes: int = 100
    gap: float = 0.005


def heuristic(
    graph: Graph, costs: Costs, *, budget: int, host_budget: int | None = None
) -> Schedule | None:
    """The best schedule of a greedy choice of what leaves; None where none fits.

    It goes through the launches once a trial, and makes fewer trials of deeper networks. Where
    there are few choices it tries them all; the best plan is polished and, where the network is not
    small, its bytes are given places in other orders.
    """
    task = Task(graph, costs, "tvdnn-heuristic", budget, host_budget)
    best: Found | None = None
    ranked = _ranked(task, list(_affordable(sites(graph, costs))))
    for number, (site, likely_s) in enumerate(ranked.items()):
        if number >= _least_placed(task) and best and best.seconds <= NEAR * likely_s:
            break
        if _may_gain(task.compute_s(site), best):
            best = fastest([best, *_chosen(task, site, best)])
            best = fastest([best, *enumerated(task, site, best)])
    if best is None:
        return None
    few = 1 if task.small else POLISHED
    return _improved(task, best, task.most_trials // few).schedule


def optimal(
    graph: Graph,
    costs: Costs,
    *,
    budget: int,
    host_budget: int | None = None,
    effort: Effort = Effort(),
) -> Schedule | None:
    """The best schedule of integer programs and the greedy choice, polished; None where none fits.

    Its plan tells how near it comes to the relaxed optimum of all sites. Where that is not near,
    and the network not small, its bytes are given places in other orders.
    """
    task = Task(graph, costs, "tvdnn-ilp", budget, host_budget)
    ground = list(sites(graph, costs))
    relaxed = {site: _problem(task, site, task.room).relaxed() for site in ground}
    solved = {site: found for site, found in relaxed.items() if found is not None}
    ranked = _most_promising(task, _by_promise(solved, effort.gap))
    greedy = [site for site in _ranked(task, list(_affordable(ground))) if site not in ranked]
    few = 1 if task.small else POLISHED
    tries = task.most_trials // few // max(1, len(ranked))
    least = min(solved.values(), key=attrgetter("step_s"), default=None)
    best: Found | None = None
    for site in (*ranked, *greedy):  # these are what the heuristic tries
        if site not in solved or not _may_gain(solved[site].step_s, best):
            continue
        if site in ranked:
            found = fastest(_programmed(task, site, effort, best))
            if _may_gain((1.0 if task.small else NEAR) * solved[site].step_s, found):
                found = fastest([found, *_chosen(task, site, fastest([best, found]))])
                found = fastest([found, *enumerated(task, site, found)])
        else:
            found = fastest(fitted(task, site, partial(_greedy, site), best, both=False))
        if found is not None:
            best = fastest([best, polished(task, found, tries) if task.small else found])
    done = task.small and best is not None
    best = best or fastest(each for site in ranked for each in _emptied(task, site))
    if best is None or least is None:
        return None
    return _standing(best if done else _improved(task, best, tries, least.step_s), least)


def _improved(task: Task, best: Found, tries: int, least_s: float = 0.0) -> Found:
    """The best one polished, and in other places where that is not near the least seconds."""
    best = polished(task, best, tries)
    elsewhere = 0 if task.small else task.most_trials // RESETTLED
    if not elsewhere or best.seconds <= NEAR * least_s:
        return best
    return fastest([best, task.resettled(best.trial, elsewhere)]) or best


def _may_gain(least_s: float, best: Found | None) -> bool:
    """Whether what takes so many seconds at least may take less than the best."""
    return best is None or least_s < (1 - WORTH) * best.seconds


def _most_promising(task: Task, ranked: Sequence[Site]) -> Sequence[Site]:
    """The first of the sites; none is left out of what is small."""
    return ranked if task.small else ranked[:MOST_SITES]


def _by_promise(solved: Mapping[Site, Relaxed], gap: float) -> list[Site]:
    """The sites by the least that their steps may take; those within `gap` are even.

    Of these the one of most launches goes first. It has the smallest blocks, for which places are
    found best: of GoogLeNet, bound by the link, plans come 2% nearer to what all may take.
    """
    even_s = (1 + gap) * min((found.step_s for found in solved.values()), default=0.0)

    def promise(site: Site) -> tuple[float, int]:
        return max(solved[site].step_s, even_s), -len(site.draft.program.launches)

    return sorted(solved, key=promise)


def _least_placed(task: Task) -> int:
    """Of how many sites plans are placed, whatever the first of them take."""
    return max(1, task.most_trials // 2)


def _affordable(ground: Iterable[Site]) -> Iterator[Site]:
    """The first of the sites, and more as long as their launches are few enough to order all."""
    num_launches = 0
    for site in ground:
        yield site
        num_launches += len(site.draft.program.launches)
        if num_launches >= RANKED:
            break


def _ranked(task: Task, ground: list[Site]) -> dict[Site, float]:
    """The sites whose steps are predicted to take least, and what; inf, and last, without order."""
    cap = round(FIRST_SHARE * task.room)
    if len(ground) == 1:
        return {ground[0]: inf}
    trials = {site: task.trial(site, _greedy(site, cap), cap) for site in ground}
    seconds = {site: trial.seconds if trial else inf for site, trial in trials.items()}
    ranked = _most_promising(task, sorted(ground, key=seconds.__getitem__))
    return {site: seconds[site] for site in ranked}


def _greedy(site: Site, caps: MemoryLimit) -> Sequence[IdleInterval] | None:
    return farthest(site.needed, site.gaps(caps), caps)


def _chosen(task: Task, site: Site, best: Found | None) -> list[Found]:
    """Schedules of the greedy choice: in places, and under caps whose bytes find one.

    Also in places with room to spare: more leaves than must, and less waits for its place.
    """
    choose = partial(_greedy, site)
    found = fitted(task, site, choose, best, both=task.small)
    return [*found, *_sparing(task, site, choose, SPARING, fastest([best, *found]))]


def _sparing(
    task: Task, site: Site, choose: Chooser, shares: Sequence[float], best: Found | None
) -> Iterator[Found]:
    """Schedules of a choice in places under such shares of all caps.

    Those are placed that are predicted to take less than the best so far.
    """
    for share in shares:
        caps = (share * task.caps(site)).astype(np.int64)
        trial = task.trial(site, choose(caps), caps)
        if trial is not None and (best is None or trial.seconds < best.seconds):
            found = placed(task.settled, trial)
            best = fastest([best, found])
            yield from [found] if found else []


def _emptied(task: Task, site: Site) -> Iterator[Found]:
    """Schedules of the site in which all leaves that is idle between forward and backward, or ever.

    Most bytes find a place then.
    """
    for gaps in (site.trips, [*site.trips, *site.others]):
        for share in EMPTIED:
            trial = task.trial(site, gaps, round(share * task.room))
            found = placed(task.found, trial)
            yield from [found] if found else []


def _programmed(task: Task, site: Site, effort: Effort, best: Found | None) -> list[Found]:
    """Schedules of the site by the integer program, also under caps that leave room to spare."""
    moved = _whole(task, site, task.caps(site), effort)
    if moved is None:
        return []
    choose = partial(_with_more, site, moved)
    found = fitted(task, site, choose, best, both=task.small, most=1)
    return [*found, *_sparing(task, site, choose, SPREAD, fastest([best, *found]))]


def _with_more(
    site: Site, moved: Sequence[IdleInterval], caps: MemoryLimit
) -> Sequence[IdleInterval] | None:
    """These gaps, and of the others those that launches need besides under the caps."""
    needed, taken = site.needed.copy(), set(moved)
    for gap in moved:
        needed[gap.last + 1 : gap.next] -= gap.nbytes
    more = farthest(needed, [gap for gap in site.gaps(caps) if gap not in taken], caps)
    return None if more is None else [*moved, *more]


def _whole(
    task: Task, site: Site, caps: MemoryLimit, effort: Effort
) -> Sequence[IdleInterval] | None:
    """The sections that leave by the integer program, of each bundle the last; None if unsolved."""
    members = bundles(site.gaps(caps))
    if is_tight(task, site) and len(members) > MOST_BUNDLES:
        return None
    program = _program_of(task, site, caps, members)
    counts = program.whole(time_limit_s=effort.time_limit_s, nodes=effort.nodes, gap=effort.gap)
    if counts is None:
        return None
    pairs = zip(members, counts, strict=True)
    return [gap for each, count in pairs for gap in each[len(each) - round(count) :]]


def _problem(task: Task, site: Site, caps: MemoryLimit) -> SwapProblem:
    """The problem of a site, in all of whose gaps sections may be away."""
    return _program_of(task, site, caps, bundles([*site.trips, *site.others]))


def _program_of(
    task: Task, site: Site, caps: MemoryLimit, members: Sequence[Bundle]
) -> SwapProblem:
    graph, costs, host_budget = task.graph, task.costs, task.host_budget
    program = site.draft.program
    return SwapProblem(graph, program, costs, members, room=caps, host_budget=host_budget)


def _standing(best: Found, relaxed: Relaxed) -> Schedule:
    """The schedule, its plan told how near the optimum it is."""
    gains = dict(sorted(relaxed.gains.items(), key=itemgetter(1), reverse=True))
    standing = OptimalityReport(best.seconds, relaxed.step_s, gains)
    return replace(best.schedule, plan=replace(best.schedule.plan, optimality=standing))

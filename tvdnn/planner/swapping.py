"""The searches for tvDNN's plans: by greedy choice of what leaves, and by integer programs.

Both look for the highest cap on bytes at once whose plan finds a place for them, first with places
given before the steps are ordered and then after, on the sites whose steps are predicted to take
least; the simulator tells which schedule is best.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, islice, product
from math import inf
from operator import attrgetter, itemgetter, mul
from typing import TypeAlias

import numpy as np

from ..graph import Graph
from .costs import Costs
from .crowding import Array, Caps, CrowdedError, narrowed
from .gaps import Gap
from .plan import Standing
from .policies.tvdnn import Site, farthest, sites
from .polish import HOPELESS, WORTH, Moved, polished
from .relaxation import Bundle, Relaxed, SwapProblem, bundles
from .schedule import Schedule
from .trials import Found, Task, Trial

FIRST_SHARE = 0.97
RANKED = 10_000  # launches, from which on no more sites are ordered to rank them: 1 s
MOST_SITES = 2  # whose plans are placed: those of the fastest steps at the first share
NEAR = 1.02  # times the least that a site's step may take: near enough
EMPTIED = (1.0, 0.9, 0.8, 0.7)  # caps, where no choice finds a place
CUT, AROUND = 0.2, 1  # of what finds no place, and at launches beside its own: lower caps
SPARING = (0.96, 0.92)  # of the caps, under which the greedy choice is given places as well
MOST_BUNDLES = 1000  # where sections leave again, up to which integer programs are solved in time
MOST_SETTLED = 10_000  # stays up to which they are given places
LESS = (0.97, 0.94, 0.9, 0.85, 0.8, 0.7)  # caps, where one choice finds no place
MOST_CHOICES = 500  # of a site, up to which all are tried
POLISHED = 4  # trials, of which one is spent on polish where the network is not small
BATCH = 32  # choices that are ordered before the best of them are placed
MOST_CROWDED = 2  # of those that found no place, for which one is looked for again
PATIENCE = 24  # choices that may be placed in vain
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

    It goes through the launches once a trial, and makes fewer trials of deeper networks. Where
    there are few choices it tries them all; the best plan is polished.
    """
    task = Task(graph, costs, "tvdnn-heuristic", budget, host_budget)
    best: Found | None = None
    ranked = _ranked(task, list(_affordable(sites(graph, costs))))
    for number, (site, likely_s) in enumerate(ranked.items()):
        if number >= _least_placed(task) and best and best.seconds <= NEAR * likely_s:
            break
        if _may_gain(task.compute_s(site), best):
            best = _best([best, *_chosen(task, site, best)])
            best = _best([best, *_enumerated(task, site, best)])
    if best is None:
        return None
    few = 1 if task.small else POLISHED
    return polished(task, best, task.most_trials // few).schedule


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
    ranked = _most_promising(task, _by_promise(solved, effort.gap))
    greedy = [site for site in _ranked(task, list(_affordable(ground))) if site not in ranked]
    few = 1 if task.small else POLISHED
    tries = task.most_trials // few // max(1, len(ranked))
    best: Found | None = None
    for site in (*ranked, *greedy):  # these are what the heuristic tries
        if site not in solved or not _may_gain(solved[site].step_s, best):
            continue
        if site in ranked:
            found = _best(_programmed(task, site, effort, best))
            if _may_gain((1.0 if task.small else NEAR) * solved[site].step_s, found):
                found = _best([found, *_chosen(task, site, _best([best, found]))])
                found = _best([found, *_enumerated(task, site, found)])
        else:
            found = _best(_fitted(task, site, partial(_greedy, site), best, both=False))
        if found is not None:
            best = _best([best, polished(task, found, tries)])
    if best is None:
        emptied = _best(each for site in ranked for each in _emptied(task, site))
        if emptied is None:
            return None
        best = polished(task, emptied, tries)
    return _standing(best, min(solved.values(), key=attrgetter("step_s")))


def _best(found: Iterable[Found | None]) -> Found | None:
    return min(filter(None, found), key=attrgetter("seconds"), default=None)


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


def _greedy(site: Site, caps: Caps) -> Sequence[Gap] | None:
    return farthest(site.needed, site.gaps(caps), caps)


def _chosen(task: Task, site: Site, best: Found | None) -> list[Found]:
    """Schedules of the greedy choice: in places, and under caps whose bytes find one.

    Also in places with room to spare: more leaves than must, and less waits for its place.
    """
    found = _fitted(task, site, partial(_greedy, site), best, both=True)
    for share in SPARING:
        caps = (share * task.caps(site)).astype(np.int64)
        trial = task.trial(site, _greedy(site, caps), caps)
        fastest = _best([best, *found])
        if trial and (fastest is None or trial.seconds < fastest.seconds):
            roomy = _placed(task.settled, trial)
            found += [roomy] if roomy else []
    return found


def _fitted(
    task: Task,
    site: Site,
    choose: Chooser,
    best: Found | None,
    *,
    both: bool,
    most: int | None = None,
) -> list[Found]:
    """Schedules of a choice in places and, with `both` or where there are none, without.

    The latter are up to `most`, under caps whose bytes find a place. In little room they are far
    slower, and made only where no schedule is known.
    """
    found = _settled(task, site, choose, best)
    known = found or best if _is_tight(task, site) else found and not both
    return found if known else found + _narrowed(task, site, choose, task.caps(site), most)


def _is_tight(task: Task, site: Site) -> bool:
    """Whether a large network has so little room that more than round trips must be made."""
    return not task.small and site.gaps(task.caps(site)) is not site.trips


def _narrowed(
    task: Task,
    site: Site,
    choose: Chooser,
    caps: Array,
    most: int | None = None,
) -> list[Found]:
    """Up to `most` schedules of a choice, under caps lowered where bytes find no place.

    Of a small network those of the choice with all back late too.
    """
    found: list[Found] = []

    def attempt(caps: Array) -> Found | None:
        trial = task.trial(site, choose(caps), caps)
        if trial is None:
            return None
        try:
            return task.found(trial)
        except CrowdedError:
            late = _placed(task.found, _late(task, trial)) if task.small else None
            found.extend([late] if late else [])
            raise

    num_stays = len(site.draft.program.residencies)
    found += filter(None, islice(narrowed(attempt, caps, site.least, num_stays), most))
    return found


def _settled(task: Task, site: Site, choose: Chooser, best: Found | None) -> list[Found]:
    """The schedule of a choice in places free when its bytes come, under caps that allow for them.

    The choice is given up once a step is predicted to take longer than the best.
    """
    num_stays = len(site.draft.program.residencies)
    if num_stays > MOST_SETTLED:
        return []

    def attempt(caps: Array) -> Found | None:
        trial = task.trial(site, choose(caps), caps)
        if trial is None or (best and trial.seconds > best.seconds):
            return None
        return task.settled(trial)

    tried = narrowed(attempt, task.caps(site), site.least, num_stays, cut=CUT, around=AROUND)
    return list(filter(None, islice(tried, 1)))


def _enumerated(task: Task, site: Site, best: Found | None) -> Iterator[Found]:
    """Schedules of any numbers of the last sections of maps, where there are few such choices.

    With nothing else away and, of small networks, with all that is idle elsewhere. Made are those
    whose steps are predicted to take little more than the best, and at last the fastest of those
    whose bytes found no place, under caps by launch.
    """
    best_s, patience = best.seconds if best else inf, PATIENCE
    crowded: list[Trial] = []
    for likely in _batches(task, site):
        worth = [moved for least_s, moved in likely if least_s < (1 - WORTH) * best_s]
        fit = (moved for moved in worth if task.may_fit(site, moved))
        trials = filter(None, [task.trial(site, moved, task.room) for moved in fit])
        for trial in sorted(trials, key=attrgetter("seconds")):
            if trial.seconds > HOPELESS * best_s or patience <= 0:
                break
            if _placed(task.found, trial) is None:
                crowded.append(trial)
            for found in _under_less(task, trial, best_s):
                if found.seconds < (1 - WORTH) * best_s:
                    best_s, patience = found.seconds, PATIENCE
                yield found
            patience -= 1
        if patience <= 0:
            break
    for trial in sorted(crowded, key=attrgetter("seconds"))[:MOST_CROWDED]:
        if trial.seconds < (1 - WORTH) * best_s:
            yield from _narrowed(task, site, _always(trial.moved), task.caps(site), most=1)


def _always(moved: Moved) -> Chooser:
    """The choice of the same sections under all caps."""
    return lambda _: moved


def _batches(task: Task, site: Site) -> Iterator[Sequence[tuple[float, Moved]]]:
    """Choices and what no step takes less than with them, the least first, some at a time."""
    besides = ((), tuple(site.others)) if task.small else ((),)
    chosen = [(*moved, *more) for moved in _choices(task, site) for more in besides]
    ranked = sorted(((task.least_s(site, moved), moved) for moved in chosen), key=itemgetter(0))
    for first in range(0, len(ranked), BATCH):
        yield ranked[first : first + BATCH]


def _choices(task: Task, site: Site) -> Iterator[Moved]:
    """Any numbers of the last sections of maps, in few choices; of negligible maps the largest."""
    maps: dict[str, list[Gap]] = {}
    for gap in site.trips:
        maps.setdefault(gap.buffer, []).append(gap)
    least = NEGLIGIBLE * max((gap.nbytes for gap in site.trips), default=0)
    ranked = sorted(maps.values(), key=lambda gaps: gaps[0].nbytes, reverse=True)
    counts = list(accumulate((1 + len(gaps) for gaps in ranked), mul))
    few = bisect_right(counts, min(MOST_CHOICES, task.most_trials))
    if few < len(ranked) and ranked[few][0].nbytes > least:
        return
    options = ([gaps[len(gaps) - n :] for n in range(1 + len(gaps))] for gaps in ranked[:few])
    for choice in product(*options):
        yield tuple(chain.from_iterable(choice))


def _under_less(task: Task, trial: Trial, best_s: float) -> Iterator[Found]:
    """The trial's schedule; where its bytes find no place those under lower caps, or all late.

    Of those are made which are predicted to take little more than the best.
    """
    found = _placed(task.found, trial)
    if found is not None:
        yield found
        return
    site, moved = trial.site, trial.moved
    less = [task.aligned(site, moved)]
    less += [task.trial(site, moved, round(share * task.room)) for share in LESS]
    for each in (*less, *(_late(task, each) for each in (trial, *less) if each)):
        if each is not None and each.seconds <= HOPELESS * best_s:
            found = _placed(task.found, each)
            yield from [found] if found else []


def _late(task: Task, trial: Trial) -> Trial | None:
    """The trial with all sections back no earlier than they must, so that fewer are there."""
    moved = [replace(gap, opens=gap.returns) for gap in trial.moved]
    return task.trial(trial.site, moved, trial.caps)


def _placed(make: Callable[[Trial], Found | None], trial: Trial | None) -> Found | None:
    """The schedule that is made of the trial; None where there is none."""
    try:
        return None if trial is None else make(trial)
    except CrowdedError:
        return None


def _emptied(task: Task, site: Site) -> Iterator[Found]:
    """Schedules of the site in which all leaves that is idle between forward and backward, or ever.

    Most bytes find a place then.
    """
    for gaps in (site.trips, [*site.trips, *site.others]):
        for share in EMPTIED:
            trial = task.trial(site, gaps, round(share * task.room))
            found = _placed(task.found, trial)
            yield from [found] if found else []


def _programmed(task: Task, site: Site, effort: Effort, best: Found | None) -> list[Found]:
    """Schedules of the site by the integer program."""
    moved = _whole(task, site, task.caps(site), effort)
    if moved is None:
        return []
    choose = partial(_with_more, site, moved)
    return _fitted(task, site, choose, best, both=task.small, most=1)


def _with_more(site: Site, moved: Sequence[Gap], caps: Caps) -> Sequence[Gap] | None:
    """These gaps, and of the others those that launches need besides under the caps."""
    needed, taken = site.needed.copy(), set(moved)
    for gap in moved:
        needed[gap.last + 1 : gap.back] -= gap.nbytes
    more = farthest(needed, [gap for gap in site.gaps(caps) if gap not in taken], caps)
    return None if more is None else [*moved, *more]


def _whole(task: Task, site: Site, caps: Caps, effort: Effort) -> Sequence[Gap] | None:
    """The sections that leave by the integer program, of each bundle the last; None if unsolved."""
    members = bundles(site.gaps(caps))
    if _is_tight(task, site) and len(members) > MOST_BUNDLES:
        return None
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

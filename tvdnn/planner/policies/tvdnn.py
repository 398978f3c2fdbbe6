"""tvDNN (PPoPP 2018): maps leave in sections and return, chosen greedily or by integer programs.

Both searches take the skeletons of the fewest predicted seconds. On each they look for the highest
limits on live bytes whose plan finds a place for all, with offsets given before or after the steps
are ordered. Where choices are few all are tried. The simulator tells which schedule is best.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from operator import attrgetter, itemgetter

from ..ir.plan import OptimalityReport, Plan
from ..ir.schedule import Schedule
from ..lowering.idle import IdleInterval
from ..lowering.launch_limits import MemoryLimit
from ..offload.belady import belady_choice, plans_offloading_all, skeletons
from ..offload.exhaustive import exhaustive_search
from ..offload.fit import fit_candidate, is_tight, with_headroom
from ..offload.ilp import ILP_GAP, LpBound, SectionClass, SwapLP, section_classes
from ..offload.local_search import MIN_GAIN, local_search
from ..offload.swap_problem import EvaluatedTrial, SwapProblem, best_of, placed_if_any
from ..problem import GraphProblem, Policy
from .keep import keep, keep_schedule

ILP, HEURISTIC = "tvdnn-ilp", "tvdnn-heuristic"
RANKING_SHARE = 0.97  # of the arena, under which skeletons are ordered to rank them
RANKED = 10_000  # launches: no more are ordered to rank skeletons, which takes 1 s
MOST_SKELETONS = 2  # of a large network whose plans are placed
CLOSE_ENOUGH = 1.02  # times the lower bound of a step: no faster one is looked for
HEADROOM_FALLBACK = (1.0, 0.9, 0.8, 0.7)  # shares of the arena, where no choice finds a place
HEADROOM_ILP = tuple(1 - number / 400 for number in range(1, 9))  # shares of limits, for its choice
HEADROOM = (0.96, 0.92)  # shares of limits, for the greedy choice
MOST_CLASSES = 1000  # of sections: integer programs of more are not solved in time in little memory
TRIALS_PER_CHANGE = 4  # one trial in so many is spent on local search of a large network
TRIALS_PER_RETRY = 2  # and then one in so many on other offsets


def heuristic(problem: GraphProblem) -> Schedule | None:
    """The best schedule of a greedy choice of what to offload; None where none fits.

    A trial goes through the launches once. Deeper networks have fewer trials.
    """
    best: EvaluatedTrial | None = None
    ranked = _ranked(_affordable(_swap_problems(problem, HEURISTIC)))
    for number, (swap, likely_s) in enumerate(ranked.items()):
        least_placed = max(1, swap.most_trials // 2)  # however fast the first of them is
        if number >= least_placed and best and best.seconds <= CLOSE_ENOUGH * likely_s:
            break
        if _may_gain(swap.compute_s, best):
            best = best_of([best, *_greedy_schedules(swap, best)])
            best = best_of([best, *exhaustive_search(swap, best)])
    if best is None:
        return None
    few = 1 if best.trial.swap.small else TRIALS_PER_CHANGE
    return _searched_further(best, best.trial.swap.most_trials // few).schedule


def optimal(problem: GraphProblem) -> Schedule | None:
    """The best schedule of integer programs and of the greedy choice; None where none fits.

    Its plan tells how near it comes to the optimum of the linear programs.
    """
    swaps = list(_swap_problems(problem, ILP))
    every = {each: section_classes(each.skeleton.all_idle) for each in swaps}
    bounds = {each: _lp_of(each, each.capacity, every[each]).lp_bound() for each in swaps}
    solved = {swap: found for swap, found in bounds.items() if found is not None}
    small, trials = swaps[0].small, swaps[0].most_trials
    ranked = _most_promising(_by_promise(solved))
    greedy = [swap for swap in _ranked(_affordable(swaps)) if swap not in ranked]
    tries = trials // (1 if small else TRIALS_PER_CHANGE) // max(1, len(ranked))
    least = min(solved.values(), key=attrgetter("step_s"), default=None)
    best: EvaluatedTrial | None = None
    for swap in (*ranked, *greedy):  # these are what the heuristic tries
        if swap not in solved or not _may_gain(solved[swap].step_s, best):
            continue
        if swap in ranked:
            found = best_of(_integer_schedules(swap, best))
            if _may_gain((1.0 if small else CLOSE_ENOUGH) * solved[swap].step_s, found):
                found = best_of([found, *_greedy_schedules(swap, best_of([best, found]))])
                found = best_of([found, *exhaustive_search(swap, found)])
        else:
            found = best_of(fit_candidate(swap, swap.greedy, best, both=False))
        if found is not None:
            best = best_of([best, local_search(found, tries) if small else found])
    done = small and best is not None
    best = best or best_of(each for swap in ranked for each in _all_idle_offloaded(swap))
    if best is None or least is None:
        return None
    best = best if done else _searched_further(best, tries, least.step_s)
    return _with_optimality(best, least)


def _swap_problems(problem: GraphProblem, policy: str) -> Iterator[SwapProblem]:
    """The swap problem of each skeleton."""
    for skeleton in skeletons(problem.graph, problem.costs):
        yield SwapProblem(problem, skeleton, policy)


def _searched_further(best: EvaluatedTrial, tries: int, least_s: float = 0.0) -> EvaluatedTrial:
    """The best of a local search and, of a large network far above `least_s`, of other offsets."""
    best = local_search(best, tries)
    swap = best.trial.swap
    retries = 0 if swap.small else swap.most_trials // TRIALS_PER_RETRY
    if not retries or best.seconds <= CLOSE_ENOUGH * least_s:
        return best
    return best_of([best, swap.retried(best.trial, retries)]) or best


def _may_gain(least_s: float, best: EvaluatedTrial | None) -> bool:
    return best is None or least_s < (1 - MIN_GAIN) * best.seconds


def _most_promising(ranked: Sequence[SwapProblem]) -> Sequence[SwapProblem]:
    return [swap for number, swap in enumerate(ranked) if swap.small or number < MOST_SKELETONS]


def _by_promise(solved: Mapping[SwapProblem, LpBound]) -> list[SwapProblem]:
    """The skeletons by the lower bounds of their steps; those within ILP_GAP are even.

    Of even ones the one of most launches goes first. It has the smallest blocks, which are placed
    best: plans of GoogLeNet, bound by the link, come 2% nearer to the bound.
    """
    even_s = (1 + ILP_GAP) * min((found.step_s for found in solved.values()), default=0.0)

    def promise(swap: SwapProblem) -> tuple[float, int]:
        return max(solved[swap].step_s, even_s), -len(swap.skeleton.program.launches)

    return sorted(solved, key=promise)


def _affordable(swaps: Iterable[SwapProblem]) -> Sequence[SwapProblem]:
    """The first skeleton, and more as long as their launches are few enough to order all."""
    found, num_launches = list[SwapProblem](), 0
    for swap in swaps:
        found.append(swap)
        num_launches += len(swap.skeleton.program.launches)
        if num_launches >= RANKED:
            break
    return found


def _ranked(swaps: Sequence[SwapProblem]) -> dict[SwapProblem, float]:
    """The most promising skeletons and their predicted seconds; inf where steps have no order."""
    if len(swaps) == 1:
        return {swaps[0]: inf}
    limit = round(RANKING_SHARE * swaps[0].capacity)
    trials = {each: each.trial(each.greedy(limit), limit) for each in swaps}
    seconds = {swap: trial.seconds if trial else inf for swap, trial in trials.items()}
    ranked = _most_promising(sorted(swaps, key=seconds.__getitem__))
    return {swap: seconds[swap] for swap in ranked}


def _greedy_schedules(swap: SwapProblem, best: EvaluatedTrial | None) -> list[EvaluatedTrial]:
    """Schedules of the greedy choice, also under lower limits.

    More is offloaded then than must be, and less waits for its place.
    """
    found = fit_candidate(swap, swap.greedy, best, both=swap.small)
    return [*found, *with_headroom(swap, swap.greedy, HEADROOM, best_of([best, *found]))]


def _all_idle_offloaded(swap: SwapProblem) -> Iterator[EvaluatedTrial | None]:
    """Schedules that offload all sections idle between forward and backward, or all idle sections.

    Most bytes find a place then.
    """
    for idle in (swap.skeleton.forward_backward_idle, swap.skeleton.all_idle):
        for share in HEADROOM_FALLBACK:
            trial = swap.trial(idle, round(share * swap.capacity))
            yield placed_if_any(swap.placed_after_ordering, trial)


def _integer_schedules(swap: SwapProblem, best: EvaluatedTrial | None) -> list[EvaluatedTrial]:
    """Schedules of the choice of an integer program, also under lower limits."""
    offloaded = _integer_choice(swap)
    if offloaded is None:
        return []
    choose = partial(_with_more, swap, offloaded)
    found = fit_candidate(swap, choose, best, both=swap.small, most=1)
    return [*found, *with_headroom(swap, choose, HEADROOM_ILP, best_of([best, *found]))]


def _with_more(
    swap: SwapProblem, offloaded: Sequence[IdleInterval], limits: MemoryLimit
) -> Sequence[IdleInterval] | None:
    """These idle intervals, and others that launches also need under the limits."""
    required, taken = swap.skeleton.required - swap.skeleton.freed(offloaded), set(offloaded)
    others = [idle for idle in swap.idle(limits) if idle not in taken]
    more = belady_choice(required, others, limits)
    return None if more is None else [*offloaded, *more]


def _integer_choice(swap: SwapProblem) -> Sequence[IdleInterval] | None:
    """The sections that leave by the integer program, of each class the last; None if unsolved."""
    members = section_classes(swap.idle(swap.usable))
    if is_tight(swap) and len(members) > MOST_CLASSES:
        return None
    counts = _lp_of(swap, swap.usable, members).integer_counts()
    if counts is None:
        return None
    pairs = zip(members, counts, strict=True)
    return [idle for each, count in pairs for idle in each[len(each) - round(count) :]]


def _lp_of(swap: SwapProblem, limit: int, members: Sequence[SectionClass]) -> SwapLP:
    return SwapLP(swap.skeleton.program, swap.costs, members, limit, swap.budgets.away)


def _with_optimality(best: EvaluatedTrial, lp_bound: LpBound) -> Schedule:
    sensitivities = dict(sorted(lp_bound.sensitivities.items(), key=itemgetter(1), reverse=True))
    optimality = OptimalityReport(best.seconds, lp_bound.step_s, sensitivities)
    return replace(best.schedule, plan=replace(best.schedule.plan, optimality=optimality))


def _policy(name: str, search: Callable[[GraphProblem], Schedule | None]) -> Policy:
    """The policy that takes keep's schedule where it fits, else what its search finds."""

    def schedule(problem: GraphProblem) -> Schedule | None:
        found = keep_schedule(problem) or search(problem)
        return found or problem.first_that_fits(leanest(problem))

    def leanest(problem: GraphProblem) -> Iterator[Plan]:
        yield from plans_offloading_all(problem.graph, problem.costs, name)
        yield keep(problem.graph)

    return Policy(name, schedule, leanest, searches=True)


POLICIES = (_policy(ILP, optimal), _policy(HEURISTIC, heuristic))

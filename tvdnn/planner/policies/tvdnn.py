"""tvDNN (PPoPP 2018): maps leave in sections and return, chosen greedily or by integer programs.

Both searches take the skeletons of the fewest predicted seconds. On each they look for the highest
cap on bytes at once whose plan finds a place for all, with offsets given before or after the steps
are ordered. Where choices are few all are tried. The simulator tells which schedule is best.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from operator import attrgetter, itemgetter

import numpy as np

from ..ir.plan import OptimalityReport, Plan
from ..ir.schedule import Schedule
from ..lowering.idle import IdleInterval
from ..lowering.limits import MemoryLimit
from ..offload.exhaustive import exhaustive_search
from ..offload.fit import Chooser, fit_candidate, is_tight, placed_if_any
from ..offload.ilp import ILP_GAP, LpBound, SectionClass, SwapLP, section_classes
from ..offload.local_search import MIN_GAIN, local_search
from ..offload.skeleton import Skeleton, belady_choice, plans_offloading_all, skeletons
from ..offload.swap_problem import EvaluatedTrial, SwapProblem, best_of
from ..problem import GraphProblem, Policy
from .keep import keep, keep_schedule

ILP, HEURISTIC = "tvdnn-ilp", "tvdnn-heuristic"
RANKING_SHARE = 0.97  # of the arena, under which skeletons are ordered to rank them
RANKED = 10_000  # launches: no more are ordered to rank skeletons, which takes 1 s
MOST_SKELETONS = 2  # of a large network whose plans are placed
CLOSE_ENOUGH = 1.02  # times the lower bound of a step: no faster one is looked for
HEADROOM_FALLBACK = (1.0, 0.9, 0.8, 0.7)  # shares of the arena, where no choice finds a place
HEADROOM_ILP = tuple(1 - number / 400 for number in range(1, 9))  # shares of caps, for its choice
HEADROOM = (0.96, 0.92)  # shares of caps, for the greedy choice
MOST_CLASSES = 1000  # of sections: integer programs of more are not solved in time in little memory
TRIALS_PER_CHANGE = 4  # one trial in so many is spent on local search of a large network
TRIALS_PER_RETRY = 2  # and then one in so many on other offsets


def heuristic(problem: GraphProblem) -> Schedule | None:
    """The best schedule of a greedy choice of what to offload; None where none fits.

    A trial goes through the launches once. Deeper networks have fewer trials.
    """
    swap = SwapProblem(problem, HEURISTIC)
    best: EvaluatedTrial | None = None
    ranked = _ranked(swap, list(_affordable(skeletons(problem.graph, problem.costs))))
    for number, (skeleton, likely_s) in enumerate(ranked.items()):
        if number >= _least_placed(swap) and best and best.seconds <= CLOSE_ENOUGH * likely_s:
            break
        if _may_gain(swap.compute_s(skeleton), best):
            best = best_of([best, *_greedy_schedules(swap, skeleton, best)])
            best = best_of([best, *exhaustive_search(swap, skeleton, best)])
    if best is None:
        return None
    few = 1 if swap.small else TRIALS_PER_CHANGE
    return _searched_further(swap, best, swap.most_trials // few).schedule


def optimal(problem: GraphProblem) -> Schedule | None:
    """The best schedule of integer programs and of the greedy choice; None where none fits.

    Its plan tells how near it comes to the optimum of the linear programs.
    """
    swap = SwapProblem(problem, ILP)
    all_skeletons = list(skeletons(problem.graph, problem.costs))
    bounds = {each: _full_lp(swap, each, swap.room).lp_bound() for each in all_skeletons}
    solved = {skeleton: found for skeleton, found in bounds.items() if found is not None}
    ranked = _most_promising(swap, _by_promise(solved))
    others = _ranked(swap, list(_affordable(all_skeletons)))
    greedy = [skeleton for skeleton in others if skeleton not in ranked]
    few = 1 if swap.small else TRIALS_PER_CHANGE
    tries = swap.most_trials // few // max(1, len(ranked))
    least = min(solved.values(), key=attrgetter("step_s"), default=None)
    best: EvaluatedTrial | None = None
    for skeleton in (*ranked, *greedy):  # these are what the heuristic tries
        if skeleton not in solved or not _may_gain(solved[skeleton].step_s, best):
            continue
        if skeleton in ranked:
            found = best_of(_integer_schedules(swap, skeleton, best))
            if _may_gain((1.0 if swap.small else CLOSE_ENOUGH) * solved[skeleton].step_s, found):
                found = best_of([found, *_greedy_schedules(swap, skeleton, best_of([best, found]))])
                found = best_of([found, *exhaustive_search(swap, skeleton, found)])
        else:
            choose = partial(_greedy, skeleton)
            found = best_of(fit_candidate(swap, skeleton, choose, best, both=False))
        if found is not None:
            best = best_of([best, local_search(swap, found, tries) if swap.small else found])
    done = swap.small and best is not None
    best = best or best_of(each for s in ranked for each in _all_idle_offloaded(swap, s))
    if best is None or least is None:
        return None
    best = best if done else _searched_further(swap, best, tries, least.step_s)
    return _with_optimality(best, least)


def _searched_further(
    swap: SwapProblem, best: EvaluatedTrial, tries: int, least_s: float = 0.0
) -> EvaluatedTrial:
    """The best of a local search and, of a large network far above `least_s`, of other offsets."""
    best = local_search(swap, best, tries)
    retries = 0 if swap.small else swap.most_trials // TRIALS_PER_RETRY
    if not retries or best.seconds <= CLOSE_ENOUGH * least_s:
        return best
    return best_of([best, swap.retried(best.trial, retries)]) or best


def _may_gain(least_s: float, best: EvaluatedTrial | None) -> bool:
    return best is None or least_s < (1 - MIN_GAIN) * best.seconds


def _most_promising(swap: SwapProblem, ranked: Sequence[Skeleton]) -> Sequence[Skeleton]:
    return ranked if swap.small else ranked[:MOST_SKELETONS]


def _by_promise(solved: Mapping[Skeleton, LpBound]) -> list[Skeleton]:
    """The skeletons by the lower bounds of their steps; those within ILP_GAP are even.

    Of even ones the one of most launches goes first. It has the smallest blocks, which are placed
    best: plans of GoogLeNet, bound by the link, come 2% nearer to the bound.
    """
    even_s = (1 + ILP_GAP) * min((found.step_s for found in solved.values()), default=0.0)

    def promise(skeleton: Skeleton) -> tuple[float, int]:
        return max(solved[skeleton].step_s, even_s), -len(skeleton.unbound.program.launches)

    return sorted(solved, key=promise)


def _least_placed(swap: SwapProblem) -> int:
    """How many skeletons are placed, however fast the first of them is."""
    return max(1, swap.most_trials // 2)


def _affordable(all_skeletons: Iterable[Skeleton]) -> Iterator[Skeleton]:
    """The first skeleton, and more as long as their launches are few enough to order all."""
    num_launches = 0
    for skeleton in all_skeletons:
        yield skeleton
        num_launches += len(skeleton.unbound.program.launches)
        if num_launches >= RANKED:
            break


def _ranked(swap: SwapProblem, all_skeletons: list[Skeleton]) -> dict[Skeleton, float]:
    """The most promising skeletons and their predicted seconds; inf where steps have no order."""
    cap = round(RANKING_SHARE * swap.room)
    if len(all_skeletons) == 1:
        return {all_skeletons[0]: inf}
    trials = {each: swap.trial(each, _greedy(each, cap), cap) for each in all_skeletons}
    seconds = {skeleton: trial.seconds if trial else inf for skeleton, trial in trials.items()}
    ranked = _most_promising(swap, sorted(all_skeletons, key=seconds.__getitem__))
    return {skeleton: seconds[skeleton] for skeleton in ranked}


def _greedy(skeleton: Skeleton, caps: MemoryLimit) -> Sequence[IdleInterval] | None:
    return belady_choice(skeleton.needed, skeleton.gaps(caps), caps)


def _greedy_schedules(
    swap: SwapProblem, skeleton: Skeleton, best: EvaluatedTrial | None
) -> list[EvaluatedTrial]:
    """Schedules of the greedy choice, also under lower caps.

    More is offloaded then than must be, and less waits for its place.
    """
    choose = partial(_greedy, skeleton)
    found = fit_candidate(swap, skeleton, choose, best, both=swap.small)
    return [*found, *_with_headroom(swap, skeleton, choose, HEADROOM, best_of([best, *found]))]


def _with_headroom(
    swap: SwapProblem,
    skeleton: Skeleton,
    choose: Chooser,
    shares: Sequence[float],
    best: EvaluatedTrial | None,
) -> Iterator[EvaluatedTrial]:
    """Schedules of a choice placed before ordering, under these shares of all caps.

    Those are placed that are predicted to take less than the best so far.
    """
    for share in shares:
        caps = (share * swap.caps(skeleton)).astype(np.int64)
        trial = swap.trial(skeleton, choose(caps), caps)
        if trial is not None and (best is None or trial.seconds < best.seconds):
            found = placed_if_any(swap.placed_before_ordering, trial)
            best = best_of([best, found])
            yield from [found] if found else []


def _all_idle_offloaded(swap: SwapProblem, skeleton: Skeleton) -> Iterator[EvaluatedTrial]:
    """Schedules that offload all sections idle between forward and backward, or all idle sections.

    Most bytes find a place then.
    """
    for gaps in (skeleton.forward_backward_idle, skeleton.all_idle):
        for share in HEADROOM_FALLBACK:
            trial = swap.trial(skeleton, gaps, round(share * swap.room))
            found = placed_if_any(swap.placed_after_ordering, trial)
            yield from [found] if found else []


def _integer_schedules(
    swap: SwapProblem, skeleton: Skeleton, best: EvaluatedTrial | None
) -> list[EvaluatedTrial]:
    """Schedules of the choice of an integer program, also under lower caps."""
    moved = _integer_choice(swap, skeleton, swap.caps(skeleton))
    if moved is None:
        return []
    choose = partial(_with_more, skeleton, moved)
    found = fit_candidate(swap, skeleton, choose, best, both=swap.small, most=1)
    return [*found, *_with_headroom(swap, skeleton, choose, HEADROOM_ILP, best_of([best, *found]))]


def _with_more(
    skeleton: Skeleton, moved: Sequence[IdleInterval], caps: MemoryLimit
) -> Sequence[IdleInterval] | None:
    """These idle intervals, and others that launches also need under the caps."""
    needed, taken = skeleton.needed.copy(), set(moved)
    for gap in moved:
        needed[gap.last + 1 : gap.next] -= gap.nbytes
    more = belady_choice(needed, [gap for gap in skeleton.gaps(caps) if gap not in taken], caps)
    return None if more is None else [*moved, *more]


def _integer_choice(
    swap: SwapProblem, skeleton: Skeleton, caps: MemoryLimit
) -> Sequence[IdleInterval] | None:
    """The sections that leave by the integer program, of each class the last; None if unsolved."""
    members = section_classes(skeleton.gaps(caps))
    if is_tight(swap, skeleton) and len(members) > MOST_CLASSES:
        return None
    counts = _lp_of(swap, skeleton, caps, members).integer_counts()
    if counts is None:
        return None
    pairs = zip(members, counts, strict=True)
    return [gap for each, count in pairs for gap in each[len(each) - round(count) :]]


def _full_lp(swap: SwapProblem, skeleton: Skeleton, caps: MemoryLimit) -> SwapLP:
    """The linear program in which all idle sections may leave."""
    return _lp_of(swap, skeleton, caps, section_classes(skeleton.all_idle))


def _lp_of(
    swap: SwapProblem, skeleton: Skeleton, caps: MemoryLimit, members: Sequence[SectionClass]
) -> SwapLP:
    graph, costs, host = swap.graph, swap.costs, swap.limits.host
    program = skeleton.unbound.program
    return SwapLP(graph, program, costs, members, room=caps, host_budget=host)


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

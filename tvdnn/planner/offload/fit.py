"""Fitting a choice of what to offload: limits of launches under which all bytes find a place.

Sections get their offsets before the steps are ordered, which works well in little memory, or
after.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, takewhile

from ..lowering.launch_limits import Array, FragmentationError
from .paged_fit import placed_in_pages
from .swap_problem import (
    Chooser,
    EvaluatedTrial,
    ScheduleTrial,
    SwapProblem,
    best_of,
    placed_if_any,
)

CUT, AROUND = 0.2, 1  # share of the unplaced bytes by which limits sink, and launches beside theirs
MOST_PLACED_FIRST = 10_000  # residencies: more are placed only after ordering
NEARLY = 1.01  # times what the order takes: a schedule in pages hardly waits for its places


def fit_candidate(
    swap: SwapProblem,
    choose: Chooser,
    best: EvaluatedTrial | None,
    *,
    both: bool,
    most: int | None = None,
) -> list[EvaluatedTrial]:
    """Schedules of a choice in pages, placed before ordering and, with `both` or where none fits,
    after.

    Of the latter there are up to `most`. In little memory they are far slower, and made only where
    no schedule is known.
    """
    in_pages = placed_in_pages(swap, choose, best)
    if in_pages and in_pages.seconds <= NEARLY * in_pages.trial.seconds:
        return [in_pages]
    found = [in_pages] if in_pages else []
    found += placed_before_ordering(swap, choose, best_of([best, in_pages]))
    known = found or best if is_tight(swap) else found and not both
    if known:
        return found
    least = best_of([best, *found])
    return found + under_tightened_limits(swap, choose, least, most=most)


def is_tight(swap: SwapProblem) -> bool:
    """Whether a large network must offload sections within forward or backward as well."""
    return not swap.small and swap.idle(swap.usable) is not swap.skeleton.forward_backward_idle


def under_tightened_limits(
    swap: SwapProblem,
    choose: Chooser,
    best: EvaluatedTrial | None = None,
    *,
    most: int | None = None,
) -> list[EvaluatedTrial]:
    """Up to `most` schedules of a choice, under limits tightened where bytes find no place.

    They end where a trial is predicted to take longer than `best`: tighter limits make it slower
    yet. Of a small network also schedules with every prefetch at the latest.
    """
    found: list[EvaluatedTrial] = []

    def attempt(limits: Array) -> EvaluatedTrial | None:
        trial = swap.trial(choose(limits), limits)
        if trial is None:
            return None
        if best and trial.seconds > best.seconds:
            return best
        try:
            return swap.placed_after_ordering(trial)
        except FragmentationError:
            late = at_latest_prefetch(trial) if swap.small else None
            last = placed_if_any(swap.placed_after_ordering, late)
            found.extend([last] if last else [])
            raise

    tried = swap.skeleton.with_tightened_limits(attempt, swap.capacity)
    faster = takewhile(lambda each: each is None or each is not best, tried)
    found += filter(None, islice(faster, most))
    return found


def placed_before_ordering(
    swap: SwapProblem, choose: Chooser, best: EvaluatedTrial | None
) -> list[EvaluatedTrial]:
    """The schedule of a choice with offsets before its order, under limits that allow for them.

    It is given up once a step is predicted to take longer than the best.
    """
    skeleton = swap.skeleton
    if len(skeleton.program.intervals) > MOST_PLACED_FIRST:
        return []

    def attempt(limits: Array) -> EvaluatedTrial | None:
        trial = swap.trial(choose(limits), limits)
        if trial is None or (best and trial.seconds > best.seconds):
            return None
        return swap.placed_before_ordering(trial)

    tried = skeleton.with_tightened_limits(attempt, swap.capacity, share=CUT, margin=AROUND)
    return list(filter(None, islice(tried, 1)))


def at_latest_prefetch(trial: ScheduleTrial) -> ScheduleTrial | None:
    """The trial with every prefetch as late as it may be, so that fewer sections are there."""
    offloaded = [replace(idle, earliest_prefetch=idle.needed_by) for idle in trial.offloaded]
    return trial.swap.trial(offloaded, trial.limits)


def with_headroom(
    swap: SwapProblem, choose: Chooser, shares: Sequence[float], best: EvaluatedTrial | None
) -> Iterator[EvaluatedTrial]:
    """Schedules of a choice placed before ordering, under these shares of all limits.

    Those are placed that are predicted to take less than the best so far.
    """
    for share in shares:
        limit = int(share * swap.usable)
        trial = swap.trial(choose(limit), limit)
        if trial is not None and (best is None or trial.seconds < best.seconds):
            found = placed_if_any(swap.placed_before_ordering, trial)
            best = best_of([best, found])
            yield from [found] if found else []

"""Fitting a choice of what to offload: caps on bytes at once under which all find a place.

Sections get their offsets before the steps are ordered, which works well in little memory, or
after.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import TypeAlias

from ..lowering.idle import IdleInterval
from ..lowering.limits import Array, FragmentationError, with_tightened_limits
from .skeleton import Skeleton
from .swap_problem import EvaluatedTrial, ScheduleTrial, SwapProblem, best_of

CUT, AROUND = 0.2, 1  # share of the unplaced bytes by which caps sink, and launches beside theirs
MOST_PLACED_FIRST = 10_000  # residencies: more are placed only after ordering

Chooser: TypeAlias = Callable[[Array], Sequence[IdleInterval] | None]


def fit_candidate(
    swap: SwapProblem,
    skeleton: Skeleton,
    choose: Chooser,
    best: EvaluatedTrial | None,
    *,
    both: bool,
    most: int | None = None,
) -> list[EvaluatedTrial]:
    """Schedules of a choice placed before ordering and, with `both` or where none fits, after.

    Of the latter there are up to `most`. In little memory they are far slower, and made only where
    no schedule is known.
    """
    found = _placed_before_ordering(swap, skeleton, choose, best)
    known = found or best if is_tight(swap, skeleton) else found and not both
    if known:
        return found
    least, caps = best_of([best, *found]), swap.caps(skeleton)
    return found + under_lowered_caps(swap, skeleton, choose, caps, least, most=most)


def is_tight(swap: SwapProblem, skeleton: Skeleton) -> bool:
    """Whether a large network must offload sections within forward or backward as well."""
    return (
        not swap.small and skeleton.gaps(swap.caps(skeleton)) is not skeleton.forward_backward_idle
    )


def under_lowered_caps(
    swap: SwapProblem,
    skeleton: Skeleton,
    choose: Chooser,
    caps: Array,
    best: EvaluatedTrial | None = None,
    *,
    most: int | None = None,
) -> list[EvaluatedTrial]:
    """Up to `most` schedules of a choice, under caps lowered where bytes find no place.

    They end where a trial is predicted to take longer than `best`: lower caps make it slower yet.
    Of a small network also schedules with every prefetch at the latest.
    """
    found: list[EvaluatedTrial] = []

    def attempt(caps: Array) -> EvaluatedTrial | None:
        trial = swap.trial(skeleton, choose(caps), caps)
        if trial is None:
            return None
        if best and trial.seconds > best.seconds:
            return best
        try:
            return swap.placed_after_ordering(trial)
        except FragmentationError:
            late = at_latest_prefetch(swap, trial) if swap.small else None
            last = placed_if_any(swap.placed_after_ordering, late)
            found.extend([last] if last else [])
            raise

    num_stays = len(skeleton.unbound.program.intervals)
    tried = with_tightened_limits(attempt, caps, skeleton.least, num_stays)
    faster = takewhile(lambda each: each is None or each is not best, tried)
    found += filter(None, islice(faster, most))
    return found


def _placed_before_ordering(
    swap: SwapProblem, skeleton: Skeleton, choose: Chooser, best: EvaluatedTrial | None
) -> list[EvaluatedTrial]:
    """The schedule of a choice with offsets before its order, under the caps that allow for them.

    It is given up once a step is predicted to take longer than the best.
    """
    num_stays = len(skeleton.unbound.program.intervals)
    if num_stays > MOST_PLACED_FIRST:
        return []

    def attempt(caps: Array) -> EvaluatedTrial | None:
        trial = swap.trial(skeleton, choose(caps), caps)
        if trial is None or (best and trial.seconds > best.seconds):
            return None
        return swap.placed_before_ordering(trial)

    tried = with_tightened_limits(
        attempt, swap.caps(skeleton), skeleton.least, num_stays, share=CUT, margin=AROUND
    )
    return list(filter(None, islice(tried, 1)))


def at_latest_prefetch(swap: SwapProblem, trial: ScheduleTrial) -> ScheduleTrial | None:
    """The trial with every prefetch as late as it may be, so that fewer sections are there."""
    moved = [replace(gap, earliest_prefetch=gap.needed_by) for gap in trial.moved]
    return swap.trial(trial.skeleton, moved, trial.caps)


def placed_if_any(
    make: Callable[[ScheduleTrial], EvaluatedTrial | None], trial: ScheduleTrial | None
) -> EvaluatedTrial | None:
    """The schedule that `make` gives for the trial; None where bytes find no place."""
    try:
        return None if trial is None else make(trial)
    except FragmentationError:
        return None

"""Local search: single decisions of an offload plan are changed as long as its step gets faster."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter
from typing import TypeAlias

from ..lowering.idle import IdleInterval
from ..lowering.limits import FragmentationError, MemoryLimit
from .ilp import SectionClass, section_classes
from .swap_problem import EvaluatedTrial, ScheduleTrial, SwapProblem

Offloaded: TypeAlias = tuple[IdleInterval, ...]

MIN_GAIN = 1e-4  # of a step: less is no gain
PRUNE_ABOVE = 1.02  # times the best step: a trial of more predicted seconds is not simulated
MOST_PAIRED, SMALL_PAIRED = 16, 40  # section classes, up to which any two are changed together
CAPS = (1.0, 0.97, 0.94, 0.9, 0.85, 0.8)  # shares of the arena that are tried


def local_search(swap: SwapProblem, best: EvaluatedTrial, tries: int) -> EvaluatedTrial:
    """The best schedule that so many changes make of `best`.

    Trials of the fewest predicted seconds are placed first.
    """
    better: EvaluatedTrial | None = best
    while better is not None:
        best, better = better, None
        trials = list(islice(_single_changes(swap, best), tries))
        tries -= len(trials)
        for trial in sorted(trials, key=attrgetter("seconds")):
            better = _if_faster(swap, trial, best)
            if better is not None or trial.seconds > PRUNE_ABOVE * best.seconds:
                break
    return best


def _if_faster(
    swap: SwapProblem, trial: ScheduleTrial, best: EvaluatedTrial
) -> EvaluatedTrial | None:
    """The schedule of the trial, if it takes fewer seconds than the best one."""
    for make in (swap.placed_after_ordering, swap.placed_before_ordering):
        try:
            found = make(trial)
        except FragmentationError:
            continue
        return found if found and found.seconds < (1 - MIN_GAIN) * best.seconds else None
    return None


def _single_changes(swap: SwapProblem, best: EvaluatedTrial) -> Iterator[ScheduleTrial]:
    """Trials that differ in the caps, in one section offloaded, or in when a map may return."""
    skeleton, caps, moved = best.trial.skeleton, best.trial.caps, best.trial.moved
    members = section_classes(skeleton.all_idle if swap.small else skeleton.gaps(caps))
    fewer = list(_fewer(moved, members))
    changed: list[tuple[Offloaded, MemoryLimit]] = [
        (moved, round(share * swap.room)) for share in CAPS
    ]
    changed += [
        (each, caps) for each in (*fewer, *_more(moved, members), *_other_prefetch_times(moved))
    ]
    if len(members) <= (SMALL_PAIRED if swap.small else MOST_PAIRED):
        changed += [(each, caps) for left in fewer for each in _more(left, members)]
    most_s = (1 - MIN_GAIN) * best.seconds
    for each, limit in changed:
        if swap.lower_bound_s(skeleton, each) >= most_s or not swap.may_fit(skeleton, each):
            continue
        trial = swap.trial(skeleton, each, limit) or (
            swap.aligned_trial(skeleton, each) if swap.small else None
        )
        if trial is not None and trial.seconds != best.trial.seconds:
            yield trial


def _fewer(moved: Offloaded, members: Sequence[SectionClass]) -> Iterator[Offloaded]:
    """Without the first offloaded section of each class."""
    for section_class in members:
        away = {(gap.section, gap.last) for gap in _away(moved, section_class)}
        if away:
            first = min(away)
            buffer = section_class[0].buffer
            yield tuple(g for g in moved if (g.buffer, g.section, g.last) != (buffer, *first))


def _more(moved: Offloaded, members: Sequence[SectionClass]) -> Iterator[Offloaded]:
    """With the last section of each class that stays."""
    for section_class in members:
        away = {gap.section for gap in _away(moved, section_class)}
        stays = [gap for gap in section_class if gap.section not in away]
        if stays:
            yield (*moved, stays[-1])


def _away(moved: Offloaded, section_class: SectionClass) -> Iterator[IdleInterval]:
    where = section_class[0].buffer, section_class[0].last, section_class[0].next
    return (gap for gap in moved if (gap.buffer, gap.last, gap.next) == where)


def _other_prefetch_times(moved: Offloaded) -> Iterator[Offloaded]:
    """With the sections of one map free to return half as far ahead, or as soon as they left."""
    for buffer in dict.fromkeys(gap.buffer for gap in moved):
        for opens in (_half_as_far, _as_soon_as_gone):
            yield tuple(
                replace(gap, earliest_prefetch=opens(gap)) if gap.buffer == buffer else gap
                for gap in moved
            )


def _half_as_far(gap: IdleInterval) -> int:
    return (gap.earliest_prefetch + gap.needed_by + 1) // 2


def _as_soon_as_gone(gap: IdleInterval) -> int:
    return gap.offload_after + 1

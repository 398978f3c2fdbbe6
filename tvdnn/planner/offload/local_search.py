"""Local search: single decisions of an offload plan are changed as long as its step gets faster."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter
from typing import TypeAlias

from ...graph import Form
from ..lowering.idle import IdleInterval
from ..lowering.launch_limits import FragmentationError, MemoryLimit
from .ilp import SectionClass, section_classes
from .swap_problem import EvaluatedTrial, ScheduleTrial

Offloaded: TypeAlias = tuple[IdleInterval, ...]

MIN_GAIN = 1e-4  # of a step: less is no gain
PRUNE_ABOVE = 1.02  # times the best step: a trial of more predicted seconds is not simulated
MOST_PAIRED, SMALL_PAIRED = 16, 40  # section classes, up to which any two are changed together
LIMITS = (1.0, 0.97, 0.94, 0.9, 0.85, 0.8)  # shares of the arena that are tried


def local_search(best: EvaluatedTrial, tries: int) -> EvaluatedTrial:
    """The best schedule that so many changes make of `best`.

    Trials of the fewest predicted seconds are placed first.
    """
    better: EvaluatedTrial | None = best
    while better is not None:
        best, better = better, None
        trials = list(islice(_single_changes(best), tries))
        tries -= len(trials)
        for trial in sorted(trials, key=attrgetter("seconds")):
            better = _if_faster(trial, best)
            if better is not None or trial.seconds > PRUNE_ABOVE * best.seconds:
                break
    return best


def _if_faster(trial: ScheduleTrial, best: EvaluatedTrial) -> EvaluatedTrial | None:
    """The schedule of the trial, if it takes fewer seconds than the best one."""
    for make in (trial.swap.placed_after_ordering, trial.swap.placed_before_ordering):
        try:
            found = make(trial)
        except FragmentationError:
            continue
        return found if found and found.seconds < (1 - MIN_GAIN) * best.seconds else None
    return None


def _single_changes(best: EvaluatedTrial) -> Iterator[ScheduleTrial]:
    """Trials that differ in the limits, in one section offloaded, or in when a map may return."""
    swap, limits, offloaded = best.trial.swap, best.trial.limits, best.trial.offloaded
    members = section_classes(swap.skeleton.all_idle if swap.small else swap.idle(limits))
    fewer = list(_fewer(offloaded, members))
    changed: list[tuple[Offloaded, MemoryLimit]] = [
        (offloaded, round(share * swap.capacity)) for share in LIMITS
    ]
    others = (*fewer, *_more(offloaded, members), *_other_prefetch_times(offloaded))
    changed += [(each, limits) for each in others]
    if len(members) <= (SMALL_PAIRED if swap.small else MOST_PAIRED):
        changed += [(each, limits) for left in fewer for each in _more(left, members)]
    most_s = (1 - MIN_GAIN) * best.seconds
    for each, limit in changed:
        if swap.lower_bound_s(each) >= most_s or not swap.may_fit(each):
            continue
        trial = swap.trial(each, limit) or (swap.aligned_trial(each) if swap.small else None)
        if trial is not None and trial.seconds != best.trial.seconds:
            yield trial


def _fewer(offloaded: Offloaded, members: Sequence[SectionClass]) -> Iterator[Offloaded]:
    """Without the first offloaded section of each class."""
    for section_class in members:
        away = _offloaded_of(offloaded, section_class)
        if away:
            first = min(away, key=attrgetter("section", "last"))
            yield tuple(each for each in offloaded if _place(each) != _place(first))


def _more(offloaded: Offloaded, members: Sequence[SectionClass]) -> Iterator[Offloaded]:
    """With the last section of each class that stays."""
    for section_class in members:
        away = {idle.section for idle in _offloaded_of(offloaded, section_class)}
        staying = [idle for idle in section_class if idle.section not in away]
        if staying:
            yield (*offloaded, staying[-1])


def _offloaded_of(offloaded: Offloaded, section_class: SectionClass) -> list[IdleInterval]:
    launches = attrgetter("buffer", "form", "last", "next")
    return [idle for idle in offloaded if launches(idle) == launches(section_class[0])]


def _place(idle: IdleInterval) -> tuple[str, int, Form, int]:
    return *idle.key, idle.last


def _other_prefetch_times(offloaded: Offloaded) -> Iterator[Offloaded]:
    """With the sections of one map free to return half as far ahead, or as soon as they left."""
    for buffer in dict.fromkeys(idle.buffer for idle in offloaded):
        for earliest in (_half_as_far, _as_soon_as_left):
            yield tuple(
                replace(idle, earliest_prefetch=earliest(idle)) if idle.buffer == buffer else idle
                for idle in offloaded
            )


def _half_as_far(idle: IdleInterval) -> int:
    return (idle.earliest_prefetch + idle.needed_by + 1) // 2


def _as_soon_as_left(idle: IdleInterval) -> int:
    return idle.offload_after + 1

"""Polish: decisions of a swap plan are changed one by one as long as it is simulated as faster."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter
from typing import TypeAlias

from ..lowering.idle import IdleInterval
from ..lowering.limits import FragmentationError, MemoryLimit
from .ilp import Bundle, bundles
from .problem import Found, Task, Trial

Moved: TypeAlias = tuple[IdleInterval, ...]

WORTH = 1e-4  # of a step: less is no gain
HOPELESS = 1.02  # predicted for more than this share of the best: the simulator will agree
MOST_PAIRED, SMALL_PAIRED = 16, 40  # bundles of which any two are changed together
CAPS = (1.0, 0.97, 0.94, 0.9, 0.85, 0.8)  # shares of the arena that are tried


def polished(task: Task, best: Found, tries: int) -> Found:
    """The best that is made of `best` by so many changes.

    Those are placed first whose steps are predicted to take least.
    """
    better: Found | None = best
    while better is not None:
        best, better = better, None
        trials = list(islice(_neighbours(task, best), tries))
        tries -= len(trials)
        for trial in sorted(trials, key=attrgetter("seconds")):
            better = _faster(task, trial, best)
            if better is not None or trial.seconds > HOPELESS * best.seconds:
                break
    return best


def _faster(task: Task, trial: Trial, best: Found) -> Found | None:
    """The schedule of the trial, if it takes less than the best one."""
    for make in (task.found, task.settled):
        try:
            found = make(trial)
        except FragmentationError:
            continue
        return found if found and found.seconds < (1 - WORTH) * best.seconds else None
    return None


def _neighbours(task: Task, best: Found) -> Iterator[Trial]:
    """Trials that differ in the cap, in a section more, less or other, or in when one returns."""
    site, caps, moved = best.trial.site, best.trial.caps, best.trial.moved
    members = bundles([*site.trips, *site.others] if task.small else site.gaps(caps))
    fewer = list(_fewer(moved, members))
    changed: list[tuple[Moved, MemoryLimit]] = [(moved, round(share * task.room)) for share in CAPS]
    changed += [(each, caps) for each in (*fewer, *_more(moved, members), *_reopened(moved))]
    if len(members) <= (SMALL_PAIRED if task.small else MOST_PAIRED):
        changed += [(each, caps) for left in fewer for each in _more(left, members)]
    most_s = (1 - WORTH) * best.seconds
    for each, limit in changed:
        if task.least_s(site, each) >= most_s or not task.may_fit(site, each):
            continue
        trial = task.trial(site, each, limit) or (task.aligned(site, each) if task.small else None)
        if trial is not None and trial.seconds != best.trial.seconds:
            yield trial


def _fewer(moved: Moved, members: Sequence[Bundle]) -> Iterator[Moved]:
    """Without the first section that leaves of each bundle."""
    for bundle in members:
        away = {(gap.section, gap.last) for gap in _away(moved, bundle)}
        if away:
            first = min(away)
            buffer = bundle[0].buffer
            yield tuple(g for g in moved if (g.buffer, g.section, g.last) != (buffer, *first))


def _more(moved: Moved, members: Sequence[Bundle]) -> Iterator[Moved]:
    """With the last section of each bundle that stays."""
    for bundle in members:
        away = {gap.section for gap in _away(moved, bundle)}
        stays = [gap for gap in bundle if gap.section not in away]
        if stays:
            yield (*moved, stays[-1])


def _away(moved: Moved, bundle: Bundle) -> Iterator[IdleInterval]:
    """The sections of the bundle that leave."""
    where = bundle[0].buffer, bundle[0].last, bundle[0].next
    return (gap for gap in moved if (gap.buffer, gap.last, gap.next) == where)


def _reopened(moved: Moved) -> Iterator[Moved]:
    """With the sections of one map free to return half as far ahead, or from when they left on."""
    for buffer in dict.fromkeys(gap.buffer for gap in moved):
        for opens in (_half_as_far, _at_once):
            yield tuple(
                replace(gap, earliest_prefetch=opens(gap)) if gap.buffer == buffer else gap
                for gap in moved
            )


def _half_as_far(gap: IdleInterval) -> int:
    return (gap.earliest_prefetch + gap.needed_by + 1) // 2


def _at_once(gap: IdleInterval) -> int:
    return gap.offload_after + 1

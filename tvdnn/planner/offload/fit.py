"""Attempts at a place for all bytes of a choice of what leaves.

With places given before the steps are ordered, which goes well in little room, or after.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import TypeAlias

from ..lowering.idle import IdleInterval
from ..lowering.limits import Array, FragmentationError, with_tightened_limits
from .problem import Found, Task, Trial, fastest
from .skeleton import Site

CUT, AROUND = 0.2, 1  # of what finds no place, and at launches beside its own: lower caps
MOST_SETTLED = 10_000  # stays up to which they are given places

Chooser: TypeAlias = Callable[[Array], Sequence[IdleInterval] | None]


def fitted(
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
    known = found or best if is_tight(task, site) else found and not both
    if known:
        return found
    least, caps = fastest([best, *found]), task.caps(site)
    return found + under_lowered_caps(task, site, choose, caps, least, most=most)


def is_tight(task: Task, site: Site) -> bool:
    """Whether a large network has so little room that more than round trips must be made."""
    return not task.small and site.gaps(task.caps(site)) is not site.trips


def under_lowered_caps(
    task: Task,
    site: Site,
    choose: Chooser,
    caps: Array,
    best: Found | None = None,
    *,
    most: int | None = None,
) -> list[Found]:
    """Up to `most` schedules of a choice, under caps lowered where bytes find no place.

    They end where a trial is predicted to take longer than `best`: lower caps make it slower yet.
    Of a small network those of the choice with all back late too.
    """
    found: list[Found] = []

    def attempt(caps: Array) -> Found | None:
        trial = task.trial(site, choose(caps), caps)
        if trial is None:
            return None
        if best and trial.seconds > best.seconds:
            return best
        try:
            return task.found(trial)
        except FragmentationError:
            last = placed(task.found, late(task, trial)) if task.small else None
            found.extend([last] if last else [])
            raise

    num_stays = len(site.draft.program.intervals)
    tried = with_tightened_limits(attempt, caps, site.least, num_stays)
    faster = takewhile(lambda each: each is None or each is not best, tried)
    found += filter(None, islice(faster, most))
    return found


def _settled(task: Task, site: Site, choose: Chooser, best: Found | None) -> list[Found]:
    """The schedule of a choice in places free when its bytes come, under caps that allow for them.

    The choice is given up once a step is predicted to take longer than the best.
    """
    num_stays = len(site.draft.program.intervals)
    if num_stays > MOST_SETTLED:
        return []

    def attempt(caps: Array) -> Found | None:
        trial = task.trial(site, choose(caps), caps)
        if trial is None or (best and trial.seconds > best.seconds):
            return None
        return task.settled(trial)

    tried = with_tightened_limits(
        attempt, task.caps(site), site.least, num_stays, share=CUT, margin=AROUND
    )
    return list(filter(None, islice(tried, 1)))


def late(task: Task, trial: Trial) -> Trial | None:
    """The trial with all sections back no earlier than they must, so that fewer are there."""
    moved = [replace(gap, earliest_prefetch=gap.needed_by) for gap in trial.moved]
    return task.trial(trial.site, moved, trial.caps)


def placed(make: Callable[[Trial], Found | None], trial: Trial | None) -> Found | None:
    """The schedule that is made of the trial; None where there is none."""
    try:
        return None if trial is None else make(trial)
    except FragmentationError:
        return None

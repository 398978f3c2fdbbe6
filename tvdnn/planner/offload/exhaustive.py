"""Where there are few choices of what leaves, all of them tried."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, product
from math import inf
from operator import attrgetter, itemgetter, mul

from ..lowering.idle import IdleInterval
from .fit import Chooser, late, placed, under_lowered_caps
from .local_search import HOPELESS, WORTH, Moved
from .problem import Found, Task, Trial
from .skeleton import Site

LESS = (0.97, 0.94, 0.9, 0.85, 0.8, 0.7)  # caps, where one choice finds no place
MOST_CHOICES = 500  # of a site, up to which all are tried
BATCH = 32  # choices that are ordered before the best of them are placed
MOST_CROWDED = 2  # of those that found no place, for which one is looked for again
PATIENCE = 24  # choices that may be placed in vain
NEGLIGIBLE = 0.05  # of the largest section


def enumerated(task: Task, site: Site, best: Found | None) -> Iterator[Found]:
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
            made = placed(task.found, trial)
            if made is None:
                crowded.append(trial)
            for found in [made] if made else _under_less(task, trial, best_s):
                if found.seconds < (1 - WORTH) * best_s:
                    best_s, patience = found.seconds, PATIENCE
                yield found
            patience -= 1
        if patience <= 0:
            break
    for trial in sorted(crowded, key=attrgetter("seconds"))[:MOST_CROWDED]:
        if trial.seconds < (1 - WORTH) * best_s:
            yield from under_lowered_caps(task, site, _always(trial.moved), task.caps(site), most=1)


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
    maps: dict[str, list[IdleInterval]] = {}
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
    """Schedules of a trial whose bytes find no place: under lower caps, or with all back late.

    Of these are made which are predicted to take little more than the best.
    """
    site, moved = trial.site, trial.moved
    less = [task.aligned(site, moved)]
    less += [task.trial(site, moved, round(share * task.room)) for share in LESS]
    for each in (*less, *(late(task, each) for each in (trial, *less) if each)):
        if each is not None and each.seconds <= HOPELESS * best_s:
            found = placed(task.found, each)
            yield from [found] if found else []

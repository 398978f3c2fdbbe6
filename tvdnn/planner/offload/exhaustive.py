"""Exhaustive search: where there are few choices of what to offload, all of them are tried."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, product
from math import inf
from operator import attrgetter, itemgetter, mul

from ..lowering.idle import IdleInterval
from .fit import at_latest_prefetch, under_tightened_limits
from .local_search import MIN_GAIN, PRUNE_ABOVE, Offloaded
from .swap_problem import Chooser, EvaluatedTrial, ScheduleTrial, SwapProblem, placed_if_any

TIGHTER = (0.97, 0.94, 0.9, 0.85, 0.8, 0.7)  # shares of the arena, where bytes find no place
MOST_CHOICES = 500  # of a skeleton, up to which all are tried
BATCH = 32  # choices that are ordered before the best of them are placed
MOST_UNPLACED = 2  # choices whose bytes found no place, that are placed under tighter limits
PATIENCE = 24  # choices in a row that may be placed without gain
NEGLIGIBLE = 0.05  # of the largest section: maps of smaller sections may be left out


def exhaustive_search(swap: SwapProblem, best: EvaluatedTrial | None) -> Iterator[EvaluatedTrial]:
    """Schedules that offload any numbers of the last sections of maps, where these are few.

    Small networks also offload all sections that are idle within forward or backward. Choices are
    placed that are predicted to take little more than the best. At last the fastest of those whose
    bytes found no place are placed under tighter limits by launch.
    """
    best_s, patience = best.seconds if best else inf, PATIENCE
    unplaced: list[ScheduleTrial] = []
    for likely in _batches(swap):
        worth = [choice for least_s, choice in likely if least_s < (1 - MIN_GAIN) * best_s]
        fit = (choice for choice in worth if swap.may_fit(choice))
        trials = filter(None, [swap.trial(choice, swap.capacity) for choice in fit])
        for trial in sorted(trials, key=attrgetter("seconds")):
            if trial.seconds > PRUNE_ABOVE * best_s or patience <= 0:
                break
            made = placed_if_any(swap.placed_after_ordering, trial)
            if made is None:
                unplaced.append(trial)
            for found in [made] if made else _with_less_at_once(trial, best_s):
                if found.seconds < (1 - MIN_GAIN) * best_s:
                    best_s, patience = found.seconds, PATIENCE
                yield found
            patience -= 1
        if patience <= 0:
            break
    for trial in sorted(unplaced, key=attrgetter("seconds"))[:MOST_UNPLACED]:
        if trial.seconds < (1 - MIN_GAIN) * best_s:
            yield from under_tightened_limits(swap, _always(trial.offloaded), most=1)


def _always(choice: Offloaded) -> Chooser:
    return lambda _: choice


def _batches(swap: SwapProblem) -> Iterator[Sequence[tuple[float, Offloaded]]]:
    """Choices and lower bounds of their seconds, the fewest first, some at a time."""
    besides = ((), tuple(swap.skeleton.intra_pass_idle)) if swap.small else ((),)
    chosen = [(*choice, *more) for choice in _choices(swap) for more in besides]
    ranked = sorted(((swap.lower_bound_s(choice), choice) for choice in chosen), key=itemgetter(0))
    for first in range(0, len(ranked), BATCH):
        yield ranked[first : first + BATCH]


def _choices(swap: SwapProblem) -> Iterator[Offloaded]:
    """Any numbers of the last sections of maps; of negligible maps as many as stay few choices."""
    maps: dict[str, list[IdleInterval]] = {}
    for idle in swap.skeleton.forward_backward_idle:
        maps.setdefault(idle.buffer, []).append(idle)
    ranked = sorted(maps.values(), key=lambda sections: sections[0].nbytes, reverse=True)
    least = NEGLIGIBLE * max((each.nbytes for sections in ranked for each in sections), default=0)
    counts = list(accumulate((1 + len(sections) for sections in ranked), mul))
    few = bisect_right(counts, min(MOST_CHOICES, swap.most_trials))
    if few < len(ranked) and ranked[few][0].nbytes > least:
        return
    options = (
        [sections[len(sections) - n :] for n in range(1 + len(sections))]
        for sections in ranked[:few]
    )
    for choice in product(*options):
        yield tuple(chain.from_iterable(choice))


def _with_less_at_once(trial: ScheduleTrial, best_s: float) -> Iterator[EvaluatedTrial]:
    """Schedules of a trial whose bytes find no place: in tighter limits, or at latest prefetch.

    Those are placed that are predicted to take little more than the best.
    """
    swap, choice = trial.swap, trial.offloaded
    less = [swap.aligned_trial(choice)]
    less += [swap.trial(choice, round(share * swap.capacity)) for share in TIGHTER]
    for each in (*less, *(at_latest_prefetch(each) for each in (trial, *less) if each)):
        if each is not None and each.seconds <= PRUNE_ABOVE * best_s:
            found = placed_if_any(swap.placed_after_ordering, each)
            yield from [found] if found else []

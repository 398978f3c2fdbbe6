"""Ways in which the joint search places a choice, until a schedule hardly waits for places."""

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import TypeAlias

from ..offload.fit import placed_before_ordering, under_tightened_limits, with_headroom
from ..offload.paged_fit import placed_in_pages
from ..offload.swap_problem import Chooser, EvaluatedTrial, SwapProblem
from ..recompute.skeleton import Skeleton

WayToPlace: TypeAlias = Callable[
    [SwapProblem, Chooser, EvaluatedTrial | None], Iterable[EvaluatedTrial]
]

MOST_FITTED = 2  # schedules of a choice under tightened limits
NEARLY = 1.002  # times its timetable's seconds: a schedule hardly waits for its places
MANY_INTERVALS = 20_000  # of so many the first schedule is taken: each takes seconds to place
HEADROOM = (0.96, 0.92)  # shares of limits, under which more is offloaded than must be


def ways_to_place(skeleton: Skeleton) -> tuple[float, Sequence[WayToPlace]]:
    """The ways to place a choice in a skeleton, one after the other.

    And how many times its timetable's seconds a schedule may take that ends the search.
    """
    if len(skeleton.program.intervals) > MANY_INTERVALS:
        return inf, (_tightened, _in_pages)
    return NEARLY, (_in_pages, placed_before_ordering, _with_headroom, _tightened)


def _tightened(
    swap: SwapProblem, choose: Chooser, best: EvaluatedTrial | None
) -> Iterable[EvaluatedTrial]:
    return under_tightened_limits(swap, choose, best, most=MOST_FITTED)


def _in_pages(
    swap: SwapProblem, choose: Chooser, best: EvaluatedTrial | None
) -> Iterable[EvaluatedTrial]:
    found = placed_in_pages(swap, choose, best)
    return [found] if found else []


def _with_headroom(
    swap: SwapProblem, choose: Chooser, best: EvaluatedTrial | None
) -> Iterable[EvaluatedTrial]:
    if best is not None and best.schedule.pages:
        return []
    return with_headroom(swap, choose, HEADROOM, best)

"""Paged fit: schedules of a choice in a paged arena, under limits that leave no page too few."""

import numpy as np

from ..lowering.paged_layout import paged_layout
from .swap_problem import Chooser, EvaluatedTrial, SwapProblem, best_of

# Pages of the smallest arena that is worth pages.
LEAST_PAGES = 32
# Rounds in which limits are tightened by the pages that are too few.
MOST_ROUNDS = 12
# Part of these pages by which limits are tightened more with each round.
GROWTH = 0.2


def placed_in_pages(
    swap: SwapProblem, choose: Chooser, best: EvaluatedTrial | None
) -> EvaluatedTrial | None:
    """The schedule of a choice in pages; None where there is none, or none as fast as the best.

    A patient scheduler orders the steps, and one that is not.
    """
    first = _placed(swap, choose, best, patient=True)
    return best_of([first, _placed(swap, choose, best_of([best, first]), patient=False)])


def _placed(
    swap: SwapProblem, choose: Chooser, best: EvaluatedTrial | None, *, patient: bool
) -> EvaluatedTrial | None:
    """The schedule of one scheduler.

    A section takes whole pages. Where launches have too few, their limits are tightened by those.
    """
    page_nbytes = swap.budgets.page_nbytes
    if page_nbytes is None or swap.capacity < LEAST_PAGES * page_nbytes:
        return None
    pages = swap.capacity // page_nbytes
    limits, least = np.full(swap.skeleton.required.shape, pages * page_nbytes), None
    for number in range(MOST_ROUNDS):
        trial = swap.trial(choose(limits), limits, patient=patient)
        if trial is None or (best and trial.seconds > best.seconds):
            return None
        layout = paged_layout(trial.steps, page_nbytes, least)
        excess = layout.excess(pages)
        if not excess.any():
            return swap.evaluated(trial, trial.steps, layout.arena(page_nbytes))
        more = np.ceil((1 + GROWTH * number) * excess).astype(np.int64)
        limits, least = limits - page_nbytes * more, layout.least
    return None

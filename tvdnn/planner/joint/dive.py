"""Diving: shares of a linear program are fixed to all or nothing, the surest first."""

from collections.abc import Iterable
from math import inf

import numpy as np

from .lp import JointLP, Solution
from .rows import Array

WHOLE = 1e-4  # shares nearer to all or nothing are no fractions
MOST_ROUNDS = 40
LEAST_PART = 0.02  # of the fractions: below it a round fixes a single one
SMALLER, LARGER = 1 / 3, 1.5  # factors of the part after a round without and with a solution
SURE = 0.93  # from this share on all are fixed to one
LIKELY = 0.4  # from this share on the largest are fixed to one
UNLIKELY = 0.05  # up to this share the smallest are fixed to nothing


def dive(lp: JointLP, first: Solution, most_part: float, most_s: float = inf) -> Solution | None:
    """A solution in which every absent column is taken as a whole or not at all.

    In a round up to `most_part` of the fractions are fixed to one, and as many to nothing. None
    where the dive finds no solution of at most so many seconds.
    """
    (low, high), found, part = lp.bounds(), first, most_part
    for _ in range(MOST_ROUNDS):
        shares, free = found.absent, _free(lp, low, high)
        fractions = free[(shares[free] > WHOLE) & (shares[free] < 1 - WHOLE)]
        if not len(fractions):
            return found
        ranked = fractions[np.argsort(-shares[fractions], kind="stable")]
        single = part < LEAST_PART
        count = 1 if single else max(1, int(part * len(ranked)))
        unsure = ranked[shares[ranked] < SURE]
        up = unsure[shares[unsure] >= LIKELY][:count]
        down = unsure[shares[unsure] < UNLIKELY][::-1][:count]
        sure = free[shares[free] >= SURE]
        if single or not len(sure) + len(up) + len(down):
            up, down, sure = ranked[:1], ranked[:0], ranked[:0]
        trial = low.copy(), high.copy()
        trial[1][lp.first_absent + down] = 0.0
        _fix(lp, trial, (*sure.tolist(), *up.tolist()))
        solved = lp.solve(trial, most_s)
        if solved is None and single:
            trial = low, high
            trial[1][lp.first_absent + ranked[0]] = 0.0
            solved = lp.solve(trial, most_s)
            if solved is None:
                return None
        if solved is None:
            part *= SMALLER
        else:
            (low, high), found, part = trial, solved, min(most_part, LARGER * part)
    return None


def _free(lp: JointLP, low: Array, high: Array) -> np.ndarray:
    start = lp.first_absent
    end = start + len(lp.columns.absent)
    return np.flatnonzero((low[start:end] < 1) & (high[start:end] > 0))


def _fix(lp: JointLP, bounds: tuple[Array, Array], columns: Iterable[int]) -> None:
    """Take these columns as a whole, and none that conflicts with one before."""
    low, high = bounds
    for column in columns:
        place = lp.first_absent + column
        if high[place] > 0:
            low[place] = 1.0
            for other in lp.conflicts[column]:
                if low[lp.first_absent + other] < 1:
                    high[lp.first_absent + other] = 0.0

"""Crowding: bytes that are few enough at each launch and yet find no place, and caps that help.

Launches that want sections side by side leave parts of such runs idle while these come and go, so
bytes under one cap may find no place. Where they begin, the cap is lowered for a few launches and
the steps are ordered again, until all fit. Elsewhere the arena stays full.
"""

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.int64]
Caps: TypeAlias = int | Array  # bytes at once: at all launches, or by launch
Misfits: TypeAlias = tuple[tuple[int, int], ...]  # launches before which bytes begin, and how many
Result = TypeVar("Result")

MOST_ROUNDS, LEAST_ROUNDS = 32, 6
WORK = 100_000  # launches and stays in all rounds, at 50 us each
FIRST_CUT = 0.3  # of what finds no place, by which caps are lowered
FIRST_ABOUT = 3  # launches before and after, at which they are
MORE = 1.07  # of both each round


class CrowdedError(Exception):
    """What lives at once is few enough but finds no place."""

    def __init__(self, misfits: Misfits) -> None:
        super().__init__(f"bytes from launches {[launch for launch, _ in misfits]} find no place")
        self.misfits = misfits


def narrowed(
    attempt: Callable[[Array], Result], caps: Array, least: Array, num_stays: int
) -> Result | None:
    """What `attempt` makes of `caps`, lowered after each CrowdedError, but to no less than `least`.

    None where so many rounds as work on `num_stays` allows are not enough.
    """
    share, about = FIRST_CUT, float(FIRST_ABOUT)
    for _ in range(max(LEAST_ROUNDS, min(MOST_ROUNDS, WORK // (num_stays + len(caps) + 1)))):
        try:
            return attempt(caps)
        except CrowdedError as error:
            caps = np.maximum(_lowered(caps, error.misfits, share, round(about)), least)
            share, about = MORE * share, MORE * about
    return None


def _lowered(caps: Array, misfits: Misfits, share: float, about: int) -> Array:
    """Caps lowered by a share of what found no place, at so many launches about its first."""
    less: Array = caps.copy()
    for launch, nbytes in misfits:
        less[max(0, launch - about) : launch + about + 1] -= round(share * nbytes)
    return less

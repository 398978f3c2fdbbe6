"""Crowding: bytes that are few enough at each launch and yet find no place, and caps that help.

Launches that want sections side by side leave parts of such runs idle while these come and go, so
bytes under one cap may find no place. At their launches and a few about them the cap is lowered and
the steps are ordered again, until all fit. Elsewhere the arena stays full.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.int64]
Caps: TypeAlias = int | Array  # bytes at once: at all launches, or by launch
Misfits: TypeAlias = tuple[tuple[int, int, int], ...]  # first and last launch of bytes, how many
Result = TypeVar("Result")

MOST_ROUNDS, LEAST_ROUNDS = 24, 6
WORK = 200_000  # launches and stays in all rounds, at 30 us each
FIRST_CUT = 0.3  # of what finds no place, by which caps are lowered
FIRST_ABOUT = 3  # launches before and after, at which they are
EVERYWHERE = 64  # one part in so many of all caps goes too where there are few rounds
MORE = 1.18  # of both each round


class CrowdedError(Exception):
    """What lives at once is few enough but finds no place."""

    def __init__(self, misfits: Misfits) -> None:
        super().__init__(f"bytes from launches {[first for first, _, _ in misfits]} find no place")
        self.misfits = misfits


def narrowed(
    attempt: Callable[[Array], Result],
    caps: Array,
    least: Array,
    num_stays: int,
    *,
    cut: float = FIRST_CUT,
    around: int = FIRST_ABOUT,
) -> Iterator[Result]:
    """What `attempt` makes of caps under which all bytes find a place.

    `caps` are lowered after each CrowdedError, at first by a share `cut` of what finds no place at
    its launches and so many `around` them, but to no less than `least`; once all fits they go
    halfway back, and are lowered by less. There are so many rounds as work on `num_stays` allows;
    where these are few they start from lower caps, and the first that fits is enough.
    """
    full, share, about = caps, cut, float(around)
    rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, WORK // (num_stays + len(caps) + 1)))
    few = rounds == LEAST_ROUNDS
    if few:
        caps = np.maximum(caps - full // EVERYWHERE, least)
    for _ in range(rounds):
        try:
            yield attempt(caps)
        except CrowdedError as error:
            caps = _lowered(caps, error.misfits, share, round(about))
            caps = np.maximum(caps - full // EVERYWHERE * few, least)
            share, about = MORE * share, MORE * about
        else:
            if few or (caps == full).all():
                return
            caps, share, about = (caps + full) // 2, cut / 2, float(around)


def _lowered(caps: Array, misfits: Misfits, share: float, about: int) -> Array:
    """Caps lowered by a share of what found no place, at its launches and so many about them."""
    less: Array = caps.copy()
    for first, last, nbytes in misfits:
        less[max(0, first - about) : last + about + 1] -= round(share * nbytes)
    return less

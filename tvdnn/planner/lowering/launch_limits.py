"""Memory limits of launches, tightened where fragmentation leaves groups unplaced.

Live bytes below the limit of every launch may still find no offsets, because launches need sections
contiguous. The limits of the launches around an unplaced group are then tightened, and the steps
are scheduled again, until all groups are placed. Elsewhere the arena stays full.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.int64]
MemoryLimit: TypeAlias = int | Array  # most live bytes: at every launch, or by launch
Unplaced: TypeAlias = tuple[tuple[int, int, int], ...]  # of a group: first, last launch, bytes
Result = TypeVar("Result")

# Most and fewest rounds.
MOST_ROUNDS, FEWEST_ROUNDS = 24, 6
# Rounds until the first result where rounds are few. In 1.4 GiB of activations ResNet-3840 finds
# places in the eighth: 0.50 s a step, not 2.0 s (batches of 16 in TF32, an H200, 2026-11-26).
ROUNDS_TO_FIRST = 12
# Launches and live intervals that all rounds together may schedule, at 30 us each.
SCHEDULED_IN_ALL = 200_000
# Share of an unplaced group's bytes by which limits are tightened in the first round.
FIRST_SHARE = 0.3
# Launches before and after an unplaced group whose limits are tightened in the first round.
FIRST_MARGIN = 3
# Factor by which share and margin grow each round.
GROWTH = 1.18
# Part of all limits by which every limit is tightened in a round where rounds are few: one in 64.
EVERY_LIMIT_PART = 64


class FragmentationError(Exception):
    """Live bytes are within the limits, but some groups have no offset."""

    def __init__(self, unplaced: Unplaced) -> None:
        super().__init__(f"bytes from launches {[first for first, _, _ in unplaced]} find no place")
        self.unplaced = unplaced


def with_tightened_limits(
    attempt: Callable[[Array], Result],
    limit: int,
    least: Array,
    num_intervals: int,
    *,
    share: float = FIRST_SHARE,
    margin: int = FIRST_MARGIN,
) -> Iterator[Result]:
    """The results of `attempt` for limits under which all groups are placed.

    At first every launch has `limit` bytes. After a FragmentationError the limits of the launches
    of each unplaced group, and of `margin` launches on both sides, are tightened by `share` of its
    bytes, but not below `least`. After a result the limits go halfway back, and share and margin
    start again from half the share. The number of rounds falls with `num_intervals`. Where rounds
    are few they start from tighter limits, and end with the first result or after a few more.
    """
    full, part, reach = np.full(least.shape, limit), share, float(margin)
    affordable = SCHEDULED_IN_ALL // (num_intervals + len(full) + 1)
    rounds = max(FEWEST_ROUNDS, min(MOST_ROUNDS, affordable))
    few = rounds == FEWEST_ROUNDS
    limits = np.maximum(full - full // EVERY_LIMIT_PART, least) if few else full
    for _ in range(ROUNDS_TO_FIRST if few else rounds):
        try:
            yield attempt(limits)
        except FragmentationError as error:
            limits = _tightened(limits, error.unplaced, part, round(reach))
            limits = np.maximum(limits - full // EVERY_LIMIT_PART * few, least)
            part, reach = GROWTH * part, GROWTH * reach
        else:
            if few or (limits == full).all():
                return
            limits, part, reach = (limits + full) // 2, share / 2, float(margin)


def _tightened(limits: Array, unplaced: Unplaced, share: float, margin: int) -> Array:
    """Limits less a share of each unplaced group's bytes, with `margin` launches on both sides."""

    less: Array = limits.copy()
    for first, last, nbytes in unplaced:
        less[max(0, first - margin) : last + margin + 1] -= round(share * nbytes)
    return less

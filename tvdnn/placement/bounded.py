"""First fit below a given capacity: an offset for each group, and the groups that have none."""

from collections.abc import Sequence
from typing import TypeAlias

from .intervals import AllocationGroup, order_by_start
from .sweep_first_fit import SweepFirstFit

# Most unplaced groups after which best fit is tried.
BEST_FIT_UNPLACED = 3
# Most unplaced groups after which highest fit for short-lived groups is tried.
HIGHEST_FIT_UNPLACED = 12
# Longest life of a short-lived group, as a share of all times.
SHORT_LIVED = 0.02

Bounded: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]  # offsets, unplaced


def first_fit_bounded(groups: Sequence[AllocationGroup], capacity: int) -> Bounded:
    """Offsets below `capacity` bytes, as of `assign_offsets`, and the numbers of unplaced groups.

    Groups are placed in the order of their starts, each at the lowest free offset. If at most 12
    groups stay unplaced, short-lived groups are tried at the highest free offset. If at most 3 stay
    unplaced, best fit is tried. The result with the fewest unplaced groups is returned. The offset
    of an unplaced group is 0.
    """
    found = _place_below(groups, capacity)
    if 0 < len(found[1]) <= HIGHEST_FIT_UNPLACED:
        short_lived = round(SHORT_LIVED * max(group.last for group in groups))
        if short_lived:
            other = _place_below(groups, capacity, short_lived=short_lived)
            found = min(found, other, key=_num_unplaced)
    if 0 < len(found[1]) <= BEST_FIT_UNPLACED:
        found = min(found, _place_below(groups, capacity, best_fit=True), key=_num_unplaced)
    return found


def _num_unplaced(found: Bounded) -> int:
    return len(found[1])


def _place_below(
    groups: Sequence[AllocationGroup],
    capacity: int,
    *,
    best_fit: bool = False,
    short_lived: int = 0,
) -> Bounded:
    """One attempt, by first fit or best fit.

    A group that lives shorter than `short_lived` times takes the highest fit.
    """
    offsets, unplaced = [0] * len(groups), list[int]()
    occupancy = SweepFirstFit(sum(len(each.intervals) for each in groups), best_fit=best_fit)
    for index in order_by_start(groups):
        group = groups[index]
        highest = group.last - group.first < short_lived and len(group.intervals) == 1
        offset = occupancy.highest_fit(group, capacity) if highest else occupancy.fit(group)
        if offset + group.nbytes > capacity:
            unplaced.append(index)
        else:
            offsets[index] = offset
            occupancy.add(group, offset)
    return tuple(offsets), tuple(unplaced)

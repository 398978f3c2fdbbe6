"""Arena layout: a device address for every live interval of a timetable."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from ...placement import (
    AllocationGroup,
    assign_offsets,
    first_fit_bounded,
    lower_bound_nbytes,
    restart_randomly,
)
from ...placement.cuda_blocks import block_nbytes, usable_nbytes
from ..ir.page_map import PageMap
from .launch_limits import FragmentationError
from .lifetimes import REUSE_DELAY, group_lifetimes
from .program import Program
from .timetable import Timetable

# Trials of a placement, at 30 ms each for VGG-16.
FEW_TRIALS, MANY_TRIALS = 6, 30
# Groups up to which all trials are made. Trials of more groups take longer, and fewer are made.
ALL_TRIALS_GROUPS = 3000
# Groups up to which a fragmented arena makes trials, and a floor makes random restarts.
FEW_GROUPS = 200


@dataclass(frozen=True, slots=True)
class ArenaLayout:
    """The device address of every live interval, by its number, and the bytes of the arena."""

    addresses: tuple[int, ...]
    nbytes: int
    pages: PageMap | None = None  # None: addresses are offsets of bytes

    @classmethod
    def of(
        cls, prog: Program, groups: Sequence[AllocationGroup], offsets: Sequence[int]
    ) -> "ArenaLayout":
        """The layout of a program's groups at these offsets."""
        addresses, top = [0] * len(prog.intervals), 0
        for members, group, offset in zip(prog.groups, groups, offsets, strict=True):
            for number, distance in members:
                addresses[number] = offset + distance
            top = max(top, offset + group.nbytes)
        return cls(tuple(addresses), block_nbytes(top))


def place_arena(
    timetable: Timetable,
    *,
    reuse_delay: int = 0,
    target: int | None = None,
    trials: int = 0,
    restarts: int = 0,
) -> ArenaLayout:
    """The layout of a timetable's live intervals, improved until it takes `target` bytes.

    `trials` are those of `assign_offsets`. Few groups are also placed in random orders, until
    `restarts` orders in a row give no smaller layout.
    """
    groups = group_lifetimes(timetable, reuse_delay)
    share = min(1, ALL_TRIALS_GROUPS / max(1, len(groups))) ** 2
    target = None if target is None else usable_nbytes(target)
    found = assign_offsets(groups, target, int(trials * share))
    if len(groups) <= FEW_GROUPS:
        found = restart_randomly(groups, found, restarts)
    return ArenaLayout.of(timetable.program, groups, found[0])


def place_arena_within(timetable: Timetable, capacity: int) -> ArenaLayout:
    """The layout of a timetable's live intervals inside `capacity` bytes.

    Raises FragmentationError where groups stay unplaced.
    """
    groups, usable = group_lifetimes(timetable), usable_nbytes(capacity)
    offsets, unplaced = first_fit_bounded(groups, usable)
    if unplaced and len(groups) <= FEW_GROUPS and lower_bound_nbytes(groups) <= usable:
        offsets, high_water = assign_offsets(groups, usable, FEW_TRIALS)
        unplaced = unplaced if high_water > usable else ()
    if not unplaced:
        delayed = group_lifetimes(timetable, REUSE_DELAY)
        others, delayed_unplaced = first_fit_bounded(delayed, usable)
        placed = (groups, offsets) if delayed_unplaced else (delayed, others)
        return ArenaLayout.of(timetable.program, *placed)
    launches = list(accumulate(item.is_launch for item in timetable.items))
    firsts = [launches[groups[at].first] - 1 for at in unplaced]
    raise FragmentationError(
        tuple((first, first, groups[at].nbytes) for first, at in zip(firsts, unplaced, strict=True))
    )

"""Arena: an address on the device for every residency, for as long as an order keeps it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from ...graph import Graph
from ...placement import (
    AllocationGroup,
    assign_offsets,
    first_fit_bounded,
    lower_bound_nbytes,
    restart_randomly,
)
from ...placement.cuda_blocks import block_nbytes, usable_nbytes
from .lifetimes import COOL_DOWN, lasting
from .limits import CrowdedError
from .list_scheduler import Event
from .program import side_by_side
from .timetable import Ordered

FEW_TRIALS, MANY_TRIALS = 6, 30  # of a placement, at 30 ms each for VGG-16
FULL_EXTENTS = 3000  # up to which all trials are made: above, they take longer, and are fewer
FEW_EXTENTS = 200  # up to which all rounds of lower caps make trials, and floors random orders


@dataclass(frozen=True, slots=True)
class Arena:
    """The address of every residency on the device."""

    addresses: tuple[int, ...]
    nbytes: int

    @classmethod
    def of(
        cls,
        groups: Sequence[Sequence[int]],
        extents: Sequence[AllocationGroup],
        bases: Sequence[int],
    ) -> "Arena":
        """The arena of groups of residencies at these base addresses."""
        addresses, top = [0] * sum(map(len, groups)), 0
        for members, extent, base in zip(groups, extents, bases, strict=True):
            for number, stay in zip(members, extent.intervals, strict=True):
                addresses[number] = base + stay.offset
            top = max(top, base + extent.nbytes)
        return cls(tuple(addresses), block_nbytes(top))


def place_arena(
    graph: Graph,
    steps: Ordered,
    *,
    cool_down: int = 0,
    enough: int | None = None,
    trials: int = 0,
    shuffles: int = 0,
) -> Arena:
    """The arena of the order, as tight as `assign_offsets` makes it of `enough` and `trials`.

    Of few extents, as tight as so many `shuffles` without gain make it.
    """
    groups = side_by_side(steps.program)
    extents = lasting(graph, steps, groups, cool_down)
    share = min(1, FULL_EXTENTS / max(1, len(extents))) ** 2
    enough = None if enough is None else usable_nbytes(enough)
    found = assign_offsets(extents, enough, int(trials * share))
    if len(extents) <= FEW_EXTENTS:
        found = restart_randomly(extents, found, shuffles)
    return Arena.of(groups, extents, found[0])


def fit_arena(graph: Graph, steps: Ordered, room: int) -> Arena:
    """The arena of the order inside `room`. Raises CrowdedError where bytes find no place."""
    groups, usable = side_by_side(steps.program), usable_nbytes(room)
    extents = lasting(graph, steps, groups)
    bases, misfits = first_fit_bounded(extents, usable)
    if misfits and len(extents) <= FEW_EXTENTS and lower_bound_nbytes(extents) <= usable:
        bases, high_water = assign_offsets(extents, usable, FEW_TRIALS)
        misfits = misfits if high_water > usable else ()
    if not misfits:
        rested = lasting(graph, steps, groups, COOL_DOWN)
        others, crowded = first_fit_bounded(rested, usable)
        return Arena.of(groups, extents, bases) if crowded else Arena.of(groups, rested, others)
    launches = list(accumulate(entry.event is Event.LAUNCH for entry in steps.entries))
    firsts = [launches[extents[at].first] - 1 for at in misfits]
    raise CrowdedError(
        tuple((first, first, extents[at].nbytes) for first, at in zip(firsts, misfits, strict=True))
    )

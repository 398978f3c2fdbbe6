"""Fitting: a base address inside a given room for each extent, and which extents find none."""

from collections.abc import Sequence

from .intervals import Extent, by_start
from .sweep_first_fit import TakenByStart

FEW_MISFITS, MANY_MISFITS = 3, 12  # up to which other kinds of gaps are tried
BRIEF = 0.02  # of all times: what lasts no longer goes to the other end, if that helps


def fit(extents: Sequence[Extent], room: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Base addresses below `room` as `place` gives them, and the extents that find none.

    Each extent goes by its start into the first gap; if not many are left out then what is brief
    goes into the last, and if few are then all go into the gap that is least too large, should that
    leave out fewer. The base of one that finds no place is 0.
    """
    found = _fit_in(extents, room)
    if 0 < len(found[1]) <= MANY_MISFITS:
        brief = round(BRIEF * max(extent.last for extent in extents))
        found = min(found, _fit_in(extents, room, brief=brief), key=_misfits) if brief else found
    if 0 < len(found[1]) <= FEW_MISFITS:
        found = min(found, _fit_in(extents, room, tight=True), key=_misfits)
    return found


def _misfits(found: tuple[tuple[int, ...], tuple[int, ...]]) -> int:
    return len(found[1])


def _fit_in(
    extents: Sequence[Extent], room: int, *, tight: bool = False, brief: int = 0
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What `fit` finds, in the first gaps or in `tight` ones; in the last for what is `brief`."""
    bases, misfits = [0] * len(extents), list[int]()
    taken = TakenByStart(sum(len(e.stays) for e in extents), tight=tight)
    for index in by_start(extents):
        extent = extents[index]
        highest = extent.last - extent.first < brief and len(extent.stays) == 1
        base = taken.top_base(extent, room) if highest else taken.base(extent)
        if base + extent.nbytes > room:
            misfits.append(index)
        else:
            bases[index] = base
            taken.add(extent, base)
    return tuple(bases), tuple(misfits)

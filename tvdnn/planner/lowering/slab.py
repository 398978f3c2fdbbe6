"""Slab: an address on the host for every section that leaves, until it has come back."""

from dataclasses import dataclass

from ...placement import AllocationGroup, BufferInterval, aligned, assign_offsets
from .list_scheduler import Event
from .timetable import Ordered


@dataclass(frozen=True, slots=True)
class Slab:
    """The address on the host by the stay that left."""

    addresses: dict[int, int]
    nbytes: int


def place_slab(steps: Ordered) -> Slab:
    """The slab of the order, in which each stay is held from its offload to its last prefetch."""
    held = _held(steps)
    if held and max(s.first for s in held.values()) < min(s.last for s in held.values()):
        return _stacked(held)  # all are there at one time: nothing to share
    bases, high_water = (
        assign_offsets([AllocationGroup.of((stay,)) for stay in held.values()]) if held else ((), 0)
    )
    return Slab(dict(zip(held, bases, strict=True)), high_water)


def _held(steps: Ordered) -> dict[int, BufferInterval]:
    """From when to when the host has what each stay left, by places in the order."""
    leaving: dict[int, int] = {}
    held: dict[int, BufferInterval] = {}
    for at, entry in enumerate(steps.entries):
        if entry.event is Event.OFFLOAD:
            leaving[entry.number] = at
        elif entry.event is Event.PREFETCH:
            source = steps.program.source(entry.number)
            nbytes = steps.program.residencies[source].nbytes
            held[source] = BufferInterval(0, nbytes, leaving[source], at)
    return held


def _stacked(held: dict[int, BufferInterval]) -> Slab:
    """Addresses one after the other."""
    bases, top = {}, 0
    for number, stay in held.items():
        bases[number] = top
        top += aligned(stay.nbytes)
    return Slab(bases, top)

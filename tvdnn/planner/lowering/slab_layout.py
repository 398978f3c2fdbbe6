"""Slab layout: a host address for every offloaded live interval, until its last prefetch."""

from dataclasses import dataclass

from ...placement import AllocationGroup, BufferInterval, aligned, assign_offsets
from ..ir.schedule import Lane
from .timetable import Timetable

# Items of the timetable for which the bytes of a host copy are not reused. An offload into them
# would wait for the prefetch: U-Net(8, 1024) in 4.5 GiB then takes 5 ms more of 110 (simulated).
REUSE_DELAY = 64


@dataclass(frozen=True, slots=True)
class SlabLayout:
    """The host address by number of the offloaded live interval, and the bytes of the slab."""

    addresses: dict[int, int]
    nbytes: int


def place_slab(timetable: Timetable, reuse_delay: int = REUSE_DELAY) -> SlabLayout:
    """The slab layout of a timetable. A host copy lives from its offload to its last prefetch.

    Its bytes are not reused for `reuse_delay` items more.
    """
    copies = _host_copies(timetable, reuse_delay)
    if not copies:
        return SlabLayout({}, 0)
    if max(each.first for each in copies.values()) < min(each.last for each in copies.values()):
        return _stacked(copies)  # all are live at one time and share no byte
    groups = [AllocationGroup.of((copy,)) for copy in copies.values()]
    offsets, high_water = assign_offsets(groups)
    return SlabLayout(dict(zip(copies, offsets, strict=True)), high_water)


def _host_copies(timetable: Timetable, reuse_delay: int) -> dict[int, BufferInterval]:
    """By offloaded live interval, the items of the timetable between which the host has a copy."""
    offloads: dict[int, int] = {}
    copies: dict[int, BufferInterval] = {}
    for at, item in enumerate(timetable.items):
        if item.lane is Lane.OFFLOAD:
            offloads[item.number] = at
        elif item.lane is Lane.PREFETCH:
            source = timetable.program.offload_source(item.number)
            nbytes = timetable.program.intervals[source].nbytes
            copies[source] = BufferInterval(0, nbytes, offloads[source], at + reuse_delay)
    return copies


def _stacked(copies: dict[int, BufferInterval]) -> SlabLayout:
    """Addresses one after the other."""
    addresses, top = {}, 0
    for number, copy in copies.items():
        addresses[number] = top
        top += aligned(copy.nbytes)
    return SlabLayout(addresses, top)

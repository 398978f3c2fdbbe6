"""Slab layout: host addresses of offloaded live intervals, and of the tails of codes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ...placement import AllocationGroup, BufferInterval, aligned, assign_offsets
from ..ir.schedule import Lane
from .timetable import Timetable

Key = TypeVar("Key")
# Items of the timetable for which the bytes of a host copy or a tail are not reused. An offload
# into them would wait for the prefetch: U-Net(8, 1024) in 4.5 GiB then takes 5 ms more of 110
# (simulated).
REUSE_DELAY = 64


@dataclass(frozen=True, slots=True)
class SlabLayout:
    """Host addresses and the bytes of the slab.

    Host copies are found by the number of their offloaded live interval, tails by that of the
    interval with which their code begins.
    """

    addresses: Mapping[int, int]
    nbytes: int
    tails: Mapping[int, int] = field(default_factory=dict)


def place_slab(timetable: Timetable, reuse_delay: int = REUSE_DELAY) -> SlabLayout:
    """The slab layout of a timetable.

    A host copy lives from its offload to its last prefetch, a tail from its code's encoding to its
    last decoding. Their bytes are not reused for `reuse_delay` items more.
    """
    copies = {("copy", n): each for n, each in _host_copies(timetable, reuse_delay).items()}
    tails = {("tail", n): each for n, each in _tails(timetable, reuse_delay).items()}
    offsets, nbytes = _placed(copies | tails)
    return SlabLayout(
        {number: at for (kind, number), at in offsets.items() if kind == "copy"},
        nbytes,
        {number: at for (kind, number), at in offsets.items() if kind == "tail"},
    )


def _placed(parts: Mapping[Key, BufferInterval]) -> tuple[dict[Key, int], int]:
    """The address of each part, and the bytes of all."""
    if not parts:
        return {}, 0
    if max(each.first for each in parts.values()) < min(each.last for each in parts.values()):
        return _stacked(parts)  # all are live at one time and share no byte
    groups = [AllocationGroup.of((part,)) for part in parts.values()]
    offsets, high_water = assign_offsets(groups)
    return dict(zip(parts, offsets, strict=True)), high_water


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


def _tails(timetable: Timetable, reuse_delay: int) -> dict[int, BufferInterval]:
    """By the interval of a code, the items of the timetable between which its tail lives."""
    found: dict[int, BufferInterval] = {}
    known = timetable.program.tails
    for at, item in enumerate(timetable.items if known else ()):
        if item.lane is Lane.COMPUTE and item.number in known:
            tail = known[item.number]
            first = found[tail.code].first if tail.code in found else at
            found[tail.code] = BufferInterval(0, tail.nbytes, first, at + reuse_delay)
    return found


def _stacked(parts: Mapping[Key, BufferInterval]) -> tuple[dict[Key, int], int]:
    """Addresses one after the other."""
    addresses, top = {}, 0
    for key, part in parts.items():
        addresses[key] = top
        top += aligned(part.nbytes)
    return addresses, top

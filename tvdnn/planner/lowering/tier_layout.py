"""Tier layout: the addresses of sections away from the device, and of the tails of codes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from ...placement import AllocationGroup, BufferInterval, aligned, assign_offsets
from ..ir.schedule import DESTINATIONS, FILE_ALIGNMENT, Lane, Space
from .list_scheduler import Item
from .timetable import Timetable

Key = TypeVar("Key")
# Items of the timetable for which the bytes of a host copy or a tail are not reused. An offload
# into them would wait for the prefetch: U-Net(8, 1024) in 4.5 GiB then takes 5 ms more of 110
# (simulated). Those behind it are for plans that would take more than a budget.
REUSE_DELAYS: Final = (64, 0)
# Where sections go through the slab to a file, the bounce buffers of this many items ahead are
# what lets reads and writes run beside copies.
FILE_REUSE_DELAYS: Final = (64, 32, 16, 8, 4, 2, 0)


@dataclass(frozen=True, slots=True)
class TierLayout:
    """The addresses at which copies leave their bytes away from the device, and the bytes there.

    Tails are found by the number of the live interval with which their code begins.
    """

    addresses: Mapping[Item, int] = field(default_factory=dict)
    sizes: Mapping[Space, int] = field(default_factory=dict)
    tails: Mapping[int, int] = field(default_factory=dict)

    def nbytes(self, space: Space) -> int:
        return self.sizes.get(space, 0)


def place_tiers(timetable: Timetable, reuse_delay: int = REUSE_DELAYS[0]) -> TierLayout:
    """The tier layout of a timetable.

    Bytes live from the copy that leaves them to the last that takes them, a tail from its code's
    encoding to its last decoding. They are not reused for `reuse_delay` items more. On their way to
    a file, sections are aligned as it asks.
    """
    left = _left_bytes(timetable, reuse_delay)
    in_file = any(item.lane is Lane.FILE_WRITE for item in left)
    alignment = FILE_ALIGNMENT if in_file else 1
    addresses: dict[Item, int] = {}
    sizes: dict[Space, int] = {}
    tails: dict[int, int] = {}
    for space in (Space.SLAB, Space.FILE, Space.PEER):
        here = {item: each for item, each in left.items() if DESTINATIONS[item.lane] is space}
        held = _tails(timetable, reuse_delay) if space is Space.SLAB else {}
        parts = {("copy", item): each for item, each in here.items()}
        parts |= {("tail", Item(Lane.COMPUTE, number)): each for number, each in held.items()}
        rounded = {key: _rounded(part, alignment) for key, part in parts.items()}
        offsets, sizes[space] = _placed(rounded)
        for (kind, item), at in offsets.items():
            if kind == "copy":
                addresses[item] = at
            else:
                tails[item.number] = at
    return TierLayout(addresses, sizes, tails)


def _rounded(part: BufferInterval, alignment: int) -> BufferInterval:
    return part._replace(nbytes=-(-part.nbytes // alignment) * alignment)


def _placed(parts: Mapping[Key, BufferInterval]) -> tuple[dict[Key, int], int]:
    """The address of each part, and the bytes of all."""
    if not parts:
        return {}, 0
    if max(each.first for each in parts.values()) < min(each.last for each in parts.values()):
        return _stacked(parts)  # all are live at one time and share no byte
    groups = [AllocationGroup.of((part,)) for part in parts.values()]
    offsets, high_water = assign_offsets(groups)
    return dict(zip(parts, offsets, strict=True)), high_water


def _left_bytes(timetable: Timetable, reuse_delay: int) -> dict[Item, BufferInterval]:
    """By copy away from the device, the items between which its bytes live there."""
    program = timetable.program
    places: dict[Item, int] = {}
    found: dict[Item, BufferInterval] = {}
    for at, item in enumerate(timetable.items):
        if item.is_launch:
            continue
        places[item] = at
        source = program.copy_before(*item)
        if source is not None:
            left = Item(*source)
            nbytes = program.intervals[item.number].nbytes
            found[left] = BufferInterval(0, nbytes, places[left], at + reuse_delay)
    return found


def _tails(timetable: Timetable, reuse_delay: int) -> dict[int, BufferInterval]:
    """By the interval of a code, the items of the timetable between which its tail lives."""
    found: dict[int, BufferInterval] = {}
    known = timetable.program.tails
    for at, item in enumerate(timetable.items if known else ()):
        if item.is_launch and item.number in known:
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

"""Lifetimes: from when to when residencies have their bytes, as extents that memory can place.

What launches want side by side is one extent: its sections keep their distances.
"""

from collections.abc import Sequence

from ...graph import Graph
from ...placement import AllocationGroup, BufferInterval
from .list_scheduler import Event
from .program import Program
from .timetable import Ordered

# Places in the order for which freed bytes rest where there is room, so that a copy into them need
# not wait for the last launch.
COOL_DOWN = 6


def lasting(
    graph: Graph, steps: Ordered, groups: Sequence[Sequence[int]], cool_down: int = 0
) -> list[AllocationGroup]:
    """Groups of residencies as long as they last in the order, by its places.

    A freed one rests for `cool_down` places more, or until its section comes back.
    """
    return extents_of(graph, steps.program, groups, *_positions(steps, cool_down))


def extents_of(
    graph: Graph,
    prog: Program,
    groups: Sequence[Sequence[int]],
    begins: Sequence[int],
    ends: Sequence[int],
) -> list[AllocationGroup]:
    """Groups of residencies, of which each lasts from a time to another."""
    return [_extent(graph, prog, members, begins, ends) for members in groups]


def _positions(steps: Ordered, cool_down: int) -> tuple[list[int], list[int]]:
    """Places in the order at which each residency begins and ends.

    An input is there before its half begins.
    """
    prog = steps.program
    at = {(entry.event, entry.number): index for index, entry in enumerate(steps.entries)}
    cut, end = steps.phase_split, len(steps.entries)
    halves = ((0, cut - 1), (cut, end))
    begins, ends = [], []
    before: dict[tuple[str, int], int] = {}
    for number, stay in enumerate(prog.residencies):
        first = (Event.PREFETCH, number) if stay.fetched else (Event.LAUNCH, stay.first)
        last = (Event.OFFLOAD, number) if stay.leaves else (Event.LAUNCH, stay.last)
        is_input = stay.written < stay.first and not stay.fetched
        begins.append(halves[stay.first >= prog.phase_split][0] if is_input else at[first])
        held_until = halves[stay.last >= prog.phase_split][1]
        ends.append(held_until if stay.held else min(end, at[last] + cool_down))
        section = stay.buffer, stay.section
        if section in before:
            ends[before[section]] = min(ends[before[section]], begins[number] - 1)
        before[section] = number
    return begins, ends


def _extent(
    graph: Graph, prog: Program, members: Sequence[int], begins: Sequence[int], ends: Sequence[int]
) -> AllocationGroup:
    """The residencies `members` of one buffer, as far apart as their sections."""
    if len(members) == 1:
        number = members[0]
        stay = BufferInterval(0, prog.residencies[number].nbytes, begins[number], ends[number])
        return AllocationGroup.of((stay,))
    stays = [prog.residencies[number] for number in members]
    buffer, first = graph.buffers[stays[0].buffer], min(stay.section for stay in stays)
    pitch = buffer.section * buffer.row_nbytes
    return AllocationGroup.of(
        [
            BufferInterval(
                (stay.section - first) * pitch, stay.nbytes, begins[number], ends[number]
            )
            for number, stay in zip(members, stays, strict=True)
        ]
    )

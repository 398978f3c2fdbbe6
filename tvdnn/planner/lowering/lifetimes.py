"""Lifetimes: the times at which live intervals have their bytes, as groups for placement.

Sections that a launch needs contiguous form one group and keep their distances.
"""

from collections.abc import Sequence

from ...graph import Form
from ...placement import AllocationGroup, BufferInterval
from ..ir.schedule import Lane
from .program import Program
from .timetable import Timetable

# Items of the timetable for which freed bytes are not reused where there is room for that. A copy
# into them then need not wait for the last launch.
REUSE_DELAY = 6


def group_lifetimes(timetable: Timetable, reuse_delay: int = 0) -> list[AllocationGroup]:
    """The groups of a timetable's live intervals over its items.

    An interval lasts for `reuse_delay` items more, or until its section is prefetched.
    """
    return groups_over(timetable.program, *_item_spans(timetable, reuse_delay))


def groups_over(prog: Program, begins: Sequence[int], ends: Sequence[int]) -> list[AllocationGroup]:
    """The groups of a program, each live interval with its first and last time."""
    lives = prog.intervals
    return [
        AllocationGroup.of(
            [
                BufferInterval(offset, lives[number].nbytes, begins[number], ends[number])
                for number, offset in group
            ]
        )
        for group in prog.groups
    ]


def _item_spans(timetable: Timetable, reuse_delay: int) -> tuple[list[int], list[int]]:
    """The first and the last item of each live interval.

    An input begins with its phase, an output ends with its phase.
    """
    prog = timetable.program
    at = {
        (Lane.COMPUTE if item.is_launch else item.lane, item.number): index
        for index, item in enumerate(timetable.items)
    }
    split, end = timetable.phase_split, len(timetable.items)
    phases = ((0, split - 1), (split, end))
    begins, ends = [], []
    before: dict[tuple[str, int, Form], int] = {}
    for number, live in enumerate(prog.intervals):
        fetched = live.is_prefetched
        first = prog.route_back(number)[-1].back if fetched else Lane.COMPUTE
        last = prog.route_out(number)[0].out if live.is_offloaded else Lane.COMPUTE
        begin = at[first, number if fetched else live.first]
        end_at = at[last, number if live.is_offloaded else live.last]
        is_input = live.written < live.first and not fetched
        begins.append(phases[live.first >= prog.phase_split][0] if is_input else begin)
        phase_end = phases[live.last >= prog.phase_split][1]
        ends.append(phase_end if live.pinned_to_phase_end else min(end, end_at + reuse_delay))
        section = live.buffer, live.section, live.form
        if section in before:
            ends[before[section]] = min(ends[before[section]], begins[number] - 1)
        before[section] = number
    return begins, ends

"""The checker's proof that the residencies tell every access to the arena, and no other."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ...errors import ScheduleError
from ...graph import Buffer
from ..ir.schedule import Operand, Residency, Schedule, Space
from .contents import fault

Array = npt.NDArray[np.int64]


def check_residencies(schedule: Schedule) -> None:
    """Raise ScheduleError unless each access is told by the residency that it lies in."""
    for stay in schedule.residencies:
        problem = _problem(schedule, stay)
        if problem is not None:
            raise ScheduleError(f"the residency of {stay.buffer} section {stay.section} {problem}")
    firsts = _first_sections(schedule.graph.buffers.values())
    used, told = _used(schedule, firsts), _told(schedule, firsts)
    distinct = used[_changes(used)]
    if distinct.shape != told.shape or (distinct != told).any():
        raise _difference(schedule, firsts, distinct, told)


def _problem(schedule: Schedule, stay: Residency) -> str | None:
    buffer = schedule.graph.buffers.get(stay.buffer)
    if buffer is None or not 0 <= stay.section < buffer.num_sections:
        return "is of no section"
    if stay.nbytes != buffer.section_nbytes(stay.section):
        return f"has {stay.nbytes} bytes for {buffer.section_nbytes(stay.section)}"
    if stay.offset < 0 or stay.offset + stay.nbytes > schedule.arena_nbytes:
        return f"lies outside the arena of {schedule.arena_nbytes} bytes"
    if not stay.steps or stay.steps[0] < 0 or stay.steps[-1] >= len(schedule.steps):
        return f"names steps {stay.steps} of {len(schedule.steps)}"
    if any(first >= second for first, second in pairwise(stay.steps)):
        return f"names steps {stay.steps} out of order"
    return None


def _first_sections(buffers: Iterable[Buffer]) -> dict[str, int]:
    """The number of each buffer's first section, the sections of all buffers counted through."""
    numbers, count = {}, 0
    for buffer in buffers:
        numbers[buffer.name] = count
        count += buffer.num_sections
    return numbers


def _used(schedule: Schedule, firsts: Mapping[str, int]) -> Array:
    """(step, section, address) of every access to the arena, sorted: [accesses, 3]."""
    runs = np.array(list(_runs(schedule, firsts)), np.int64).reshape(-1, 5)
    counts = runs[:, 2]
    which = np.repeat(np.arange(len(runs)), counts)
    place = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    step, section, _, address, pitch = runs[which].T
    return _sorted(np.stack((step, section + place, address + place * pitch), axis=1))


def _runs(schedule: Schedule, firsts: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
    """For each operand: step, first section, how many, the first one's address, their pitch."""
    buffers = schedule.graph.buffers
    rows = {name: (buffer.section, buffer.row_nbytes) for name, buffer in buffers.items()}
    for index, step in enumerate(schedule.steps):
        for operand in (*step.reads, *step.writes):
            if operand.space is Space.ARENA:
                yield index, *_run(operand, firsts[operand.buffer], *rows[operand.buffer])


def _run(operand: Operand, base: int, section: int, row_nbytes: int) -> tuple[int, int, int, int]:
    first, end = operand.start // section, -(-operand.stop // section)
    address = operand.offset - (operand.start - first * section) * row_nbytes
    return base + first, end - first, address, section * row_nbytes


def _told(schedule: Schedule, firsts: Mapping[str, int]) -> Array:
    """(step, section, address) of every step that a residency names, sorted: [accesses, 3]."""
    rows = [
        (step, firsts[stay.buffer] + stay.section, stay.offset)
        for stay in schedule.residencies
        for step in stay.steps
    ]
    return _sorted(np.array(rows, np.int64).reshape(-1, 3))


def _sorted(rows: Array) -> Array:
    order: Array = np.lexsort(rows.T[::-1])
    return rows[order]


def _changes(rows: Array) -> npt.NDArray[np.bool_]:
    """Which of the sorted rows differ from the one before."""
    fresh = np.ones(len(rows), np.bool_)
    fresh[1:] = np.any(rows[1:] != rows[:-1], axis=1)
    return fresh


def _difference(
    schedule: Schedule, firsts: Mapping[str, int], used: Array, told: Array
) -> ScheduleError:
    """The first access that only the steps, or only the residencies, tell of."""
    by_steps, by_stays = ({(s, n, a) for s, n, a in rows.tolist()} for rows in (used, told))
    if by_steps == by_stays:
        return ScheduleError("two residencies tell of the same access")
    index, number, address = min(by_steps ^ by_stays)
    name = max((name for name in firsts if firsts[name] <= number), key=firsts.__getitem__)
    where = f"{name} section {number - firsts[name]} at byte {address}"
    if (index, number, address) in by_steps:
        return fault(schedule, index, f"uses {where}, where no residency tells of it")
    return fault(schedule, index, f"does not use {where}, as a residency tells")

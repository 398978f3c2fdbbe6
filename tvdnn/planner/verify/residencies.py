"""Residency proof: the residencies record every access to the arena, and no other."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...errors import ScheduleError
from ...graph import CODECS, RAW, Buffer, Form, Kind, in_form
from ..ir.schedule import Operand, Residency, Schedule, Space
from .check_bytes import schedule_error

Array: TypeAlias = npt.NDArray[np.int64]
Firsts: TypeAlias = Mapping[tuple[str, Form], int]  # by buffer and form, its first number


def check_residencies(schedule: Schedule) -> None:
    """Raise ScheduleError unless each access is recorded by the residency that it lies in."""
    for each in schedule.residencies:
        problem = _problem(schedule, each)
        if problem is not None:
            raise ScheduleError(f"the residency of {each.buffer} section {each.section} {problem}")
    firsts = _first_sections(schedule)
    used, recorded = _used(schedule, firsts), _recorded(schedule, firsts)
    distinct = used[_differs_from_previous(used)]
    if distinct.shape != recorded.shape or (distinct != recorded).any():
        raise _difference(schedule, firsts, distinct, recorded)


def _problem(schedule: Schedule, residency: Residency) -> str | None:
    buffer, steps = schedule.graph.buffers.get(residency.buffer), residency.steps
    if buffer is None or not 0 <= residency.section < buffer.num_sections:
        return "is of no section"
    if residency.form != RAW and residency.form.codec not in CODECS:
        return f"has form {residency.form!r}, which is no codec"
    if residency.offset < 0 or residency.offset + residency.nbytes > schedule.addressed_nbytes:
        return f"lies outside the arena of {schedule.addressed_nbytes} bytes"
    if not steps or steps[0] < 0 or steps[-1] >= len(schedule.steps):
        return f"names steps {steps} of {len(schedule.steps)}"
    if any(first >= second for first, second in pairwise(steps)):
        return f"names steps {steps} out of order"
    expected = _nbytes(schedule, residency, in_form(buffer, residency.form))
    if residency.nbytes != expected:
        return f"has {residency.nbytes} bytes for {expected}"
    return None


def _nbytes(schedule: Schedule, residency: Residency, buffer: Buffer) -> int:
    """The bytes of a section; of a weight gradient's sums, of the rows that its steps use."""
    if buffer.kind is not Kind.PARTIAL or buffer.num_sections > 1:
        return buffer.section_nbytes(residency.section)
    steps = (schedule.steps[index] for index in residency.steps)
    used = (each for step in steps for each in (*step.reads, *step.writes))
    sizes = (each.nbytes for each in used if each.buffer == buffer.name)
    return max(sizes, default=buffer.nbytes)


def _first_sections(schedule: Schedule) -> Firsts:
    """The numbers of first sections, with the sections of all buffers in all forms numbered."""
    raw = ((name, RAW) for name in schedule.graph.buffers)
    coded = [
        (each.buffer, each.form)
        for step in schedule.steps
        for each in (*step.reads, *step.writes)
        if each.form != RAW
    ]
    coded += [(each.buffer, each.form) for each in schedule.residencies if each.form != RAW]
    numbers: dict[tuple[str, Form], int] = {}
    count = 0
    for name, form in dict.fromkeys((*raw, *coded)):
        numbers[name, form] = count
        count += schedule.graph.buffers[name].num_sections
    return numbers


def _used(schedule: Schedule, firsts: Firsts) -> Array:
    """(step, section, address) of every access to the arena, sorted [accesses, 3]."""
    runs = np.array(list(_runs(schedule, firsts)), np.int64).reshape(-1, 5)
    counts = runs[:, 2]
    which = np.repeat(np.arange(len(runs)), counts)
    place = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    step, section, _, address, pitch = runs[which].T
    return _sorted(np.stack((step, section + place, address + place * pitch), axis=1))


def _runs(schedule: Schedule, firsts: Firsts) -> Iterator[tuple[int, ...]]:
    """By operand: step, first section, number of sections, first address, bytes between them."""
    buffers = {key: in_form(schedule.graph.buffers[key[0]], key[1]) for key in firsts}
    rows = {key: (buffer.section, buffer.row_nbytes) for key, buffer in buffers.items()}
    for index, step in enumerate(schedule.steps):
        for operand in (*step.reads, *step.writes):
            if operand.space is Space.ARENA:
                key = operand.buffer, operand.form
                yield index, *_run(operand, firsts[key], *rows[key])


def _run(operand: Operand, number: int, section: int, row_nbytes: int) -> tuple[int, int, int, int]:
    first, end = operand.start // section, -(-operand.stop // section)
    address = operand.offset - (operand.start - first * section) * row_nbytes
    return number + first, end - first, address, section * row_nbytes


def _recorded(schedule: Schedule, firsts: Firsts) -> Array:
    """(step, section, address) of every step of a residency, sorted [accesses, 3]."""
    rows = [
        (step, firsts[each.buffer, each.form] + each.section, each.offset)
        for each in schedule.residencies
        for step in each.steps
    ]
    return _sorted(np.array(rows, np.int64).reshape(-1, 3))


def _sorted(rows: Array) -> Array:
    order: Array = np.lexsort(rows.T[::-1])
    return rows[order]


def _differs_from_previous(rows: Array) -> npt.NDArray[np.bool_]:
    fresh = np.ones(len(rows), np.bool_)
    fresh[1:] = np.any(rows[1:] != rows[:-1], axis=1)
    return fresh


def _difference(schedule: Schedule, firsts: Firsts, used: Array, recorded: Array) -> ScheduleError:
    """An error about the first access of the steps alone, or of the residencies alone."""
    by_steps, by_records = ({(s, n, a) for s, n, a in rows.tolist()} for rows in (used, recorded))
    if by_steps == by_records:
        return ScheduleError("two residencies record the same access")
    index, number, address = min(by_steps ^ by_records)
    key = max((key for key in firsts if firsts[key] <= number), key=firsts.__getitem__)
    form = "" if key[1] == RAW else f" in {key[1]}"
    where = f"{key[0]} section {number - firsts[key]}{form} at byte {address}"
    if (index, number, address) in by_steps:
        return schedule_error(schedule, index, f"uses {where}, which no residency records")
    return schedule_error(schedule, index, f"does not use {where}, as a residency records")

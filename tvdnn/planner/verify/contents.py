"""What every byte of arena and slab holds while a schedule runs: the checker's proof of reads."""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...errors import ScheduleError
from ...graph import Buffer
from ..ir.schedule import Action, Lane, Operand, Residency, Schedule, Space, Step
from .dataflow import CALLER, Part, Parts, Versions, overlay, restricted, span

Clock: TypeAlias = tuple[int, int, int]


@dataclass(slots=True)
class Cell:
    """Neighbouring bytes with one history.

    They hold rows of `buffer` whose row 0 would lie at address `origin`; `writer`, on `lane`, is
    the last step that wrote them and `readers` are, by lane, the last that read them since.
    """

    buffer: str
    origin: int
    parts: Parts
    lane: Lane
    writer: int
    readers: list[int]


def _cell(buffer: str, origin: int, parts: Parts, lane: Lane, writer: int) -> Cell:
    return Cell(buffer, origin, parts, lane, writer, [CALLER, CALLER, CALLER])


class Memory:
    """The bytes [0, nbytes) of one space as cells in the order of their addresses."""

    __slots__ = ("_starts", "cells")

    def __init__(self, nbytes: int) -> None:
        self._starts = [0, nbytes]
        self.cells = [_cell("", 0, (), Lane.COMPUTE, CALLER) for _ in self._starts]

    def split_at(self, start: int, stop: int) -> slice:
        """Where the cells of bytes [start, stop) are, cut at both ends."""
        first = bisect_left(self._starts, start)
        if self._starts[first] != start:
            self._split(first, start)
        last = first + 1
        if self._starts[last] != stop:
            last = bisect_left(self._starts, stop, last)
            if self._starts[last] != stop:
                self._split(last, stop)
        return slice(first, last)

    def put(self, place: slice, cell: Cell) -> None:
        """Lay one cell over those of `place`."""
        self._starts[place] = [self._starts[place.start]]
        self.cells[place] = [cell]

    def _split(self, index: int, address: int) -> None:
        """Begin a cell at `address`, which lies in the one before `index`."""
        cell = self.cells[index - 1]
        twin = Cell(
            cell.buffer, cell.origin, cell.parts, cell.lane, cell.writer, cell.readers.copy()
        )
        self._starts.insert(index, address)
        self.cells.insert(index, twin)


def fault(schedule: Schedule, index: int, text: str) -> ScheduleError:
    """The error that step `index` does what `text` says."""
    return ScheduleError(f"step {index}, {schedule.step_name(index)}, {text}")


def check_contents(schedule: Schedule, clocks: Sequence[Clock], order: Versions) -> None:
    """Raise ScheduleError unless reads find what they need and conflicting accesses are ordered.

    `clocks` hold for every step the last step of each lane that has ended before it starts (on its
    own lane: itself). The steps must be well formed. Before each half the caller fills the inputs
    that it uses first, in their sections' first residencies; after it the outputs made in it are
    taken from their sections' last ones. What a residency holds is gone after its last step.
    """
    walk = _Walk(schedule, clocks, order)
    cut, end = schedule.phase_split, len(schedule.steps)
    walk.fill_inputs(0, cut)
    walk.run(0, cut)
    maps = schedule.graph.output_maps
    walk.take_outputs(maps, order.half)
    walk.fill_inputs(cut, end)
    walk.run(cut, end)
    walk.take_outputs([name for name in schedule.graph.outputs if name not in maps], order.end)


class _Walk:
    """The walk through a schedule's steps in their order, and both spaces as they are there."""

    __slots__ = ("_clocks", "_closing", "_graph", "_memory", "_schedule", "_versions")

    def __init__(self, schedule: Schedule, clocks: Sequence[Clock], order: Versions) -> None:
        self._schedule, self._graph = schedule, schedule.graph
        self._clocks, self._versions = clocks, order
        self._memory = (Memory(schedule.arena_nbytes), Memory(schedule.slab_nbytes))  # by Space
        self._closing: dict[int, list[Residency]] = {}
        outputs = frozenset(self._graph.outputs)
        for stay in schedule.residencies:
            if stay.buffer not in outputs:
                self._closing.setdefault(stay.steps[-1], []).append(stay)

    def run(self, first: int, end: int) -> None:
        """Take steps [first, end)."""
        for index in range(first, end):
            step = self._schedule.steps[index]
            if step.action is Action.COPY:
                self._copy(index, step)
            else:
                self._launch(index, step)
            for stay in self._closing.get(index, ()):
                self._forget(stay)

    def fill_inputs(self, first: int, end: int) -> None:
        """Lay the inputs first used in steps [first, end) where they are first resident."""
        stays = _by_section(reversed(self._schedule.residencies), self._graph.inputs)
        for stay in stays.values():
            if first <= stay.steps[0] < end:
                buffer = self._graph.buffers[stay.buffer]
                origin = stay.offset - buffer.bounds(stay.section)[0] * buffer.row_nbytes
                parts = (Part(*span(None, buffer), CALLER, 0),)
                cell = _cell(stay.buffer, origin, parts, Lane.COMPUTE, first - 1)
                memory = self._memory[Space.ARENA]
                memory.put(memory.split_at(stay.offset, stay.offset + stay.nbytes), cell)

    def take_outputs(self, names: Collection[str], made: Mapping[str, Parts]) -> None:
        """Find the outputs `names` as passes left them, where they last lie."""
        stays = _by_section(self._schedule.residencies, frozenset(names))
        for name in names:
            buffer = self._graph.buffers[name]
            for section in range(buffer.num_sections):
                if (name, section) not in stays:
                    raise ScheduleError(f"output {name} section {section} is never resident")
                self._find_output(stays[name, section], buffer, made.get(name, ()))

    def _find_output(self, stay: Residency, buffer: Buffer, need: Parts) -> None:
        start, stop = buffer.bounds(stay.section)
        operand = Operand(buffer.name, start, stop, Space.ARENA, stay.offset, stay.nbytes)
        origin = stay.offset - start * buffer.row_nbytes
        for cell in self._cells(operand):
            if cell.buffer != buffer.name or cell.origin != origin or cell.parts != need:
                raise ScheduleError(
                    f"output {_place(operand)} is handed out, {self._finding(cell, operand, need)}"
                )

    def _launch(self, index: int, step: Step) -> None:
        pass_ = self._graph.passes[step.pass_index]
        adds = pass_.reduction and step.start > 0
        unfinished = {use.buffer for use in pass_.writes if use.whole} if adds else set()
        for operand, need in zip(step.reads, self._versions.needs[step.pass_index], strict=True):
            if operand.buffer in unfinished:
                continue
            if need:
                self._read(index, step.lane, operand, need)
            elif not self._starts_afresh(step, operand):
                raise fault(self._schedule, index, f"reads {operand.buffer}, which no pass made")
        for operand, use in zip(step.writes, pass_.writes, strict=True):
            part = Part(
                *span(use.channels, self._graph.buffers[use.buffer]),
                source=step.pass_index,
                done=step.stop if use.whole else pass_.domain,
            )
            if operand.buffer in unfinished:
                self._read(index, step.lane, operand, (part._replace(done=step.start),))
            self._write(index, step.lane, operand, (part,), partly=use.channels is not None)

    def _starts_afresh(self, step: Step, operand: Operand) -> bool:
        """Whether a reduction, here at its start, reads its own sum, which is not begun."""
        pass_ = self._graph.passes[step.pass_index]
        return pass_.reduction and any(
            use.whole and use.buffer == operand.buffer for use in pass_.writes
        )

    def _copy(self, index: int, step: Step) -> None:
        (source,), (target,) = step.reads, step.writes
        cells = self._read(index, step.lane, source, None)
        parts = cells[0].parts
        if any(cell.parts != parts for cell in cells):
            text = f"moves {_place(source)}, of which not all rows are written alike"
            raise fault(self._schedule, index, text)
        self._write(index, step.lane, target, parts, partly=False)

    def _read(self, index: int, lane: Lane, operand: Operand, need: Parts | None) -> list[Cell]:
        """The operand's cells, in all of which `need` (None: any version) is written by then."""
        clock, origin = self._clocks[index], self._origin(operand)
        cells = self._cells(operand)
        for cell in cells:
            if cell.buffer != operand.buffer or cell.origin != origin or not cell.parts:
                found = False
            else:
                found = need is None or cell.parts == need or restricted(cell.parts, need) == need
            if not found:
                text = f"reads {_place(operand)}, {self._finding(cell, operand, need or ())}"
                raise fault(self._schedule, index, text)
            if clock[cell.lane] < cell.writer:
                raise self._race(index, "reads", operand, cell.writer, "writes")
            cell.readers[lane] = index
        return cells

    def _write(
        self, index: int, lane: Lane, operand: Operand, parts: Parts, *, partly: bool
    ) -> None:
        """Leave `parts` in the operand's bytes, beside what other channels hold if `partly`."""
        memory, origin = self._memory[operand.space], self._origin(operand)
        place = memory.split_at(operand.offset, operand.end)
        cells = memory.cells[place]
        for cell in cells:
            self._may_write(index, operand, cell)
            same = cell.buffer == operand.buffer and cell.origin == origin
            if cell.readers[lane] == index and not same:
                text = f"writes {_place(operand)} over {cell.buffer}, which it reads"
                raise fault(self._schedule, index, text)
            if cell.writer == index and not (partly and same):
                text = f"writes {_place(operand)} over {cell.buffer}, which it writes too"
                raise fault(self._schedule, index, text)
        if not partly:
            memory.put(place, _cell(operand.buffer, origin, parts, lane, index))
            return
        for cell in cells:
            same = cell.buffer == operand.buffer and cell.origin == origin
            cell.parts = overlay(cell.parts, *parts) if same else parts
            cell.buffer, cell.origin, cell.lane, cell.writer = operand.buffer, origin, lane, index
            cell.readers = [CALLER, CALLER, CALLER]

    def _may_write(self, index: int, operand: Operand, cell: Cell) -> None:
        """Raise unless all who touched the cell have ended."""
        clock = self._clocks[index]
        if clock[cell.lane] < cell.writer:
            raise self._race(index, "writes", operand, cell.writer, "writes")
        for seen, reader in zip(clock, cell.readers, strict=True):
            if seen < reader:
                raise self._race(index, "writes", operand, reader, "reads")

    def _forget(self, stay: Residency) -> None:
        memory = self._memory[Space.ARENA]
        for cell in memory.cells[memory.split_at(stay.offset, stay.offset + stay.nbytes)]:
            cell.parts = ()

    def _cells(self, operand: Operand) -> list[Cell]:
        memory = self._memory[operand.space]
        return memory.cells[memory.split_at(operand.offset, operand.end)]

    def _origin(self, operand: Operand) -> int:
        return operand.offset - operand.start * self._graph.buffers[operand.buffer].row_nbytes

    def _race(self, index: int, does: str, operand: Operand, other: int, did: str) -> ScheduleError:
        before = f"step {other}, {self._schedule.step_name(other)}"
        text = f"{does} {_place(operand)} without waiting for {before}, which {did} there"
        return fault(self._schedule, index, text)

    def _finding(self, cell: Cell, operand: Operand, need: Parts) -> str:
        """What lies in the way of a read, in words."""
        if not cell.parts:
            return "but nothing is there"
        if cell.buffer != operand.buffer:
            return f"but {cell.buffer} is there"
        if cell.origin != self._origin(operand):
            return "but other rows of it are there"
        found = restricted(cell.parts, need)
        return f"but finds it {self._state(found)}, not {self._state(need)}"

    def _state(self, parts: Parts) -> str:
        return " and ".join(self._source(part) for part in parts) or "unwritten"

    def _source(self, part: Part) -> str:
        if part.source == CALLER:
            return "as the caller fills it"
        pass_ = self._graph.passes[part.source]
        after = "" if part.done == pass_.domain else f" [0, {part.done})"
        return f"as {pass_.name}{after} leaves it"


def _by_section(
    stays: Iterable[Residency], names: Collection[str]
) -> dict[tuple[str, int], Residency]:
    """The last of `stays` for every section of the buffers `names`."""
    return {(stay.buffer, stay.section): stay for stay in stays if stay.buffer in names}


def _place(operand: Operand) -> str:
    rows = f"{operand.buffer} [{operand.start}, {operand.stop})"
    return f"{rows} at {operand.space.name.lower()} byte {operand.offset}"

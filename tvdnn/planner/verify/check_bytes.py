"""Byte-state proof: a replay of a schedule that tracks what every byte of every space holds."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from ...errors import ScheduleError
from ...graph import RAW, Buffer, in_form, is_lossy, is_packed
from ..ir.schedule import Action, Lane, Operand, Residency, Schedule, Space, Step
from .check_lossy import rounded_recode_problem, rounded_use_problem
from .check_moves import facts_lacking
from .expected_sources import (
    CALLER,
    ChannelRange,
    ChannelRanges,
    ReadSources,
    overlay,
    restricted,
    span,
)
from .operands import described, is_of, operand_of, written_operands
from .space_contents import ByteRange, SpaceContents

Clock: TypeAlias = tuple[int, ...]  # by lane, its last step that has ended


Placed: TypeAlias = tuple[ByteRange, int]  # and the origin that an operand's rows have there


def schedule_error(schedule: Schedule, index: int, text: str) -> ScheduleError:
    """An error about step `index`; `text` begins with a verb."""
    return ScheduleError(f"step {index}, {schedule.step_name(index)}, {text}")


def check_contents(schedule: Schedule, clocks: Sequence[Clock], expected: ReadSources) -> None:
    """Raise ScheduleError unless reads find what they need and conflicting accesses are ordered.

    `clocks` hold, by step, the last step of each lane that has ended before it starts (on its own
    lane: itself). The steps must be well formed. Before each phase the caller fills the inputs that
    the phase uses first, in their sections' first residencies. After each phase it takes the
    phase's outputs from their sections' last residencies. A residency holds nothing after its last
    step.
    """
    replay = _Replay(schedule, clocks, expected)
    split, end = schedule.phase_split, len(schedule.steps)
    replay.fill_inputs(0, split)
    replay.run(0, split)
    maps = schedule.graph.output_maps
    replay.take_outputs(maps, expected.after_first_phase)
    replay.fill_inputs(split, end)
    replay.run(split, end)
    others = [name for name in schedule.graph.outputs if name not in maps]
    replay.take_outputs(others, expected.after_step)


class _Replay:
    """The steps of a schedule in their order, and the present contents of all spaces."""

    __slots__ = ("_clocks", "_closing", "_expected", "_graph", "_memory", "_pages", "_schedule")

    def __init__(self, schedule: Schedule, clocks: Sequence[Clock], expected: ReadSources) -> None:
        self._schedule, self._graph = schedule, schedule.graph
        self._clocks, self._expected, self._pages = clocks, expected, schedule.pages
        self._memory = {space: SpaceContents(each) for space, each in schedule.sizes.items()}
        self._closing: dict[int, list[Residency]] = {}
        outputs = frozenset(self._graph.outputs)
        for each in schedule.residencies:
            if each.form != RAW or each.buffer not in outputs:
                self._closing.setdefault(each.steps[-1], []).append(each)

    def run(self, first: int, end: int) -> None:
        """Replay steps [first, end)."""
        for index in range(first, end):
            step = self._schedule.steps[index]
            if step.action is Action.LAUNCH:
                self._launch(index, step)
            else:
                self._move(index, step)
            for residency in self._closing.get(index, ()):
                self._clear(residency)

    def fill_inputs(self, first: int, end: int) -> None:
        """Fill the inputs that steps [first, end) use first, in their first residencies."""
        firsts = _last_by_section(reversed(self._schedule.residencies), self._graph.inputs)
        for each in firsts.values():
            if first <= each.steps[0] < end:
                buffer = self._graph.buffers[each.buffer]
                filled = (ChannelRange(*span(None, buffer), CALLER, 0),)
                memory = self._memory[Space.ARENA]
                for low, high, origin in self._places(operand_of(each, buffer)):
                    indices = memory.split_at(low, high)
                    new = ByteRange(each.buffer, RAW, origin, filled, Lane.COMPUTE, first - 1)
                    memory.replace(indices, new)

    def take_outputs(self, names: Collection[str], produced: Mapping[str, ChannelRanges]) -> None:
        """Check that the last residencies of the outputs `names` hold what passes produced."""
        lasts = _last_by_section(self._schedule.residencies, frozenset(names))
        for name in names:
            buffer = self._graph.buffers[name]
            for section in range(buffer.num_sections):
                if (name, section) not in lasts:
                    raise ScheduleError(f"output {name} section {section} is never resident")
                self._check_output(lasts[name, section], buffer, produced.get(name, ()))

    def _check_output(self, residency: Residency, buffer: Buffer, needed: ChannelRanges) -> None:
        operand = operand_of(residency, buffer)
        for each, origin in self._byte_ranges(operand):
            holds = each.buffer == buffer.name and each.form == RAW and each.ranges == needed
            if not holds or each.origin != origin or not each.exact:
                raise ScheduleError(
                    f"output {described(operand)} is handed out, "
                    f"{self._finding(each, operand, origin, needed)}"
                )

    def _launch(self, index: int, step: Step) -> None:
        pass_ = self._graph.passes[step.pass_index]
        adds = pass_.reduction and step.start > 0
        unfinished = {use.buffer for use in pass_.writes if use.whole} if adds else set()
        needs = self._expected.needs[step.pass_index]
        for operand, needed, use in zip(step.reads, needs, pass_.reads, strict=True):
            if operand.buffer in unfinished:
                continue
            if needed:
                found = self._read(index, step.lane, operand, needed)
                exact = all(each.exact for each, _ in found)
                problem = None if exact else rounded_use_problem(step, pass_, use)
                if problem is not None:
                    raise schedule_error(self._schedule, index, problem)
            elif not self._begins_reduction(step, operand):
                text = f"reads {operand.buffer}, which no pass made"
                raise schedule_error(self._schedule, index, text)
        for operand, use in written_operands(step, pass_):
            written = ChannelRange(
                *span(use.channels, self._graph.buffers[use.buffer]),
                producer=step.pass_index,
                done=step.stop if use.whole else pass_.domain,
            )
            if operand.buffer in unfinished:
                self._read(index, step.lane, operand, (written._replace(done=step.start),))
            partly, exact = use.channels is not None, not is_lossy(operand.form)
            self._write(index, step.lane, operand, (written,), partly=partly, exact=exact)

    def _begins_reduction(self, step: Step, operand: Operand) -> bool:
        """True if the operand is the sum of a reduction that begins with this step."""
        pass_ = self._graph.passes[step.pass_index]
        return pass_.reduction and any(
            use.whole and use.buffer == operand.buffer for use in pass_.writes
        )

    def _move(self, index: int, step: Step) -> None:
        """Copy or recode: the targets hold what the sources do."""
        found = [self._read(index, step.lane, source, None) for source in step.reads]
        read = [each for placed in found for each, _ in placed]
        source, target, ranges = step.reads[0], step.writes[0], read[0].ranges
        if any(each.ranges != ranges for each in read):
            text = f"moves {described(source)}, of which not all rows are written alike"
            raise schedule_error(self._schedule, index, text)
        if is_packed(source.form) and len({each.encoder for each in read}) > 1:
            text = f"moves {described(source)}, whose parts are of several codes"
            raise schedule_error(self._schedule, index, text)
        exact = all(each.exact for each in read)
        if source.form != target.form != RAW:
            self._check_facts(index, target, ranges)
            problem = None if exact else rounded_recode_problem(source, target)
            if problem is not None:
                raise schedule_error(self._schedule, index, problem)
        encoder = read[0].encoder if step.action is Action.COPY else index
        exact = exact and not is_lossy(target.form)
        for operand in step.writes:
            self._write(
                index, step.lane, operand, ranges, partly=False, encoder=encoder, exact=exact
            )

    def _check_facts(self, index: int, code: Operand, ranges: ChannelRanges) -> None:
        """Raise unless the passes that left the values say what the code leaves out."""
        for channels in ranges:
            lacking = facts_lacking(self._graph, code, channels)
            if lacking:
                found = f"{self._source(channels)}, which need not be {lacking}"
                raise schedule_error(self._schedule, index, f"codes as {code.form} {found}")

    def _read(
        self, index: int, lane: Lane, operand: Operand, needed: ChannelRanges | None
    ) -> list[Placed]:
        """The operand's byte ranges, which all hold `needed` (None: anything) before the step."""
        clock = self._clocks[index]
        found = self._byte_ranges(operand)
        for each, origin in found:
            if not is_of(each, operand, origin) or not each.ranges:
                holds = False
            else:
                holds = needed is None or each.ranges == needed
                holds = holds or restricted(each.ranges, needed or ()) == needed
            if not holds:
                finding = self._finding(each, operand, origin, needed or ())
                text = f"reads {described(operand)}, {finding}"
                raise schedule_error(self._schedule, index, text)
            if clock[each.lane] < each.writer:
                raise self._race(index, "reads", operand, each.writer, "writes")
            each.readers[lane] = index
        return found

    def _write(
        self,
        index: int,
        lane: Lane,
        operand: Operand,
        ranges: ChannelRanges,
        *,
        partly: bool,
        encoder: int = CALLER,
        exact: bool = True,
    ) -> None:
        """Write `ranges` to the operand's bytes; if `partly`, other channels stay."""
        memory = self._memory[operand.space]
        for low, high, origin in self._places(operand):
            indices = memory.split_at(low, high)
            found = memory.byte_ranges[indices]
            self._check_writable(index, lane, operand, found, origin, partly=partly)
            if partly:
                self._overlay(index, lane, operand, found, origin, ranges)
            else:
                what = operand.buffer, operand.form, origin, ranges
                memory.replace(indices, ByteRange(*what, lane, index, encoder, exact))

    def _check_writable(
        self,
        index: int,
        lane: Lane,
        operand: Operand,
        found: Iterable[ByteRange],
        origin: int,
        *,
        partly: bool,
    ) -> None:
        """Raise unless all accesses have ended, and the step uses none of the bytes otherwise."""
        for each in found:
            self._check_ended(index, operand, each)
            same = is_of(each, operand, origin)
            if each.readers[lane] == index and not same:
                text = f"writes {described(operand)} over {each.buffer}, which it reads"
                raise schedule_error(self._schedule, index, text)
            if each.writer == index and not (partly and same):
                text = f"writes {described(operand)} over {each.buffer}, which it writes too"
                raise schedule_error(self._schedule, index, text)

    def _overlay(
        self,
        index: int,
        lane: Lane,
        operand: Operand,
        found: Iterable[ByteRange],
        origin: int,
        ranges: ChannelRanges,
    ) -> None:
        """Write some channels of the bytes; the others stay."""
        for each in found:
            same = is_of(each, operand, origin)
            each.ranges = overlay(each.ranges, *ranges) if same else ranges
            each.exact = each.exact or not same
            each.buffer, each.form, each.origin = operand.buffer, operand.form, origin
            each.lane, each.writer = lane, index
            each.readers = [CALLER] * len(Lane)

    def _check_ended(self, index: int, operand: Operand, byte_range: ByteRange) -> None:
        """Raise unless all accesses to the byte range have ended before step `index`."""
        clock = self._clocks[index]
        if clock[byte_range.lane] < byte_range.writer:
            raise self._race(index, "writes", operand, byte_range.writer, "writes")
        for ended, reader in zip(clock, byte_range.readers, strict=True):
            if ended < reader:
                raise self._race(index, "writes", operand, reader, "reads")

    def _clear(self, residency: Residency) -> None:
        buffer = self._graph.buffers[residency.buffer]
        for each, _ in self._byte_ranges(operand_of(residency, buffer)):
            each.ranges = ()

    def _byte_ranges(self, operand: Operand) -> list[Placed]:
        """The byte ranges of the operand, each with the origin of its rows there."""
        memory = self._memory[operand.space]
        return [
            (each, origin)
            for low, high, origin in self._places(operand)
            for each in memory.byte_ranges[memory.split_at(low, high)]
        ]

    def _places(self, operand: Operand) -> Iterator[tuple[int, int, int]]:
        """The bytes of the operand as ranges (low, high), each with the origin of its rows there.

        A paged arena holds them in several places.
        """
        buffer = in_form(self._graph.buffers[operand.buffer], operand.form)
        ahead = operand.start * buffer.row_nbytes
        if operand.space is Space.ARENA and self._pages is not None:
            for low, high in self._pages.physical(operand.offset, operand.nbytes):
                yield low, high, low - ahead
                ahead += high - low
        else:
            yield operand.offset, operand.end, operand.offset - ahead

    def _race(self, index: int, does: str, operand: Operand, other: int, did: str) -> ScheduleError:
        before = f"step {other}, {self._schedule.step_name(other)}"
        text = f"{does} {described(operand)} without waiting for {before}, which {did} there"
        return schedule_error(self._schedule, index, text)

    def _finding(
        self, byte_range: ByteRange, operand: Operand, origin: int, needed: ChannelRanges
    ) -> str:
        """What the bytes hold instead of `needed`, in words."""
        if not byte_range.ranges:
            return "but nothing is there"
        if byte_range.buffer != operand.buffer:
            return f"but {byte_range.buffer} is there"
        if byte_range.form != operand.form:
            return f"but its form is {byte_range.form} there"
        if byte_range.origin != origin:
            return "but other rows of it are there"
        if not byte_range.exact and byte_range.ranges == needed:
            return "but a lossy code has rounded it there"
        found = restricted(byte_range.ranges, needed)
        return f"but finds it {self._state(found)}, not {self._state(needed)}"

    def _state(self, ranges: ChannelRanges) -> str:
        return " and ".join(self._source(each) for each in ranges) or "unwritten"

    def _source(self, channels: ChannelRange) -> str:
        if channels.producer == CALLER:
            return "as the caller fills it"
        pass_ = self._graph.passes[channels.producer]
        after = "" if channels.done == pass_.domain else f" [0, {channels.done})"
        return f"as {pass_.name}{after} leaves it"


def _last_by_section(
    residencies: Iterable[Residency], names: Collection[str]
) -> dict[tuple[str, int], Residency]:
    raw = (each for each in residencies if each.buffer in names and each.form == RAW)
    return {(each.buffer, each.section): each for each in raw}

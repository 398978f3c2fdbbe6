"""Building a program: the walk through a plan's launches that opens and ends live intervals."""

from collections.abc import Iterator, Sequence

from ...errors import ScheduleError
from ...graph import RAW, Form, Graph, Pass, Use, in_form
from ..ir.plan import HOST, Bridge, Plan
from .due_bridges import (
    Section,
    by_section,
    due_code,
    due_decode,
    due_raw,
    last_launches_before_codes,
    may_be_straight,
    runs_of,
    used_sections,
)
from .filled_channels import FilledChannels
from .program import (
    NONE,
    LiveInterval,
    Program,
    ProgramLaunch,
    Recode,
    Runs,
    end_of_last,
    offload_source,
    unroll,
)


def build_program(graph: Graph, plan: Plan) -> Program:
    """Unroll `plan` and derive the live intervals of every section.

    Raises ScheduleError where the plan reads a section before it is written, or uses it after its
    offload.
    """
    launches, split = tuple(unroll(graph, plan)), graph.phase_split
    phase_split = len(launches)
    if split < len(graph.passes):
        phase_split = end_of_last(launches, lambda launch: launch.pass_index < split)
    builder = _ProgramBuilder(graph, plan, launches, phase_split)
    for number in range(len(launches)):
        builder.visit(number)
    return builder.program()


class _ProgramBuilder:
    """Walks the launches in order and opens, extends and closes the live intervals of sections.

    A write of channels that the present interval has not been given yet extends that interval.
    Every other write that does not read its buffer opens a new one. Recodes become launches among
    those of the plan.
    """

    def __init__(
        self, graph: Graph, plan: Plan, planned: tuple[ProgramLaunch, ...], split: int
    ) -> None:
        self._graph, self._plan, self._planned, self._split = graph, plan, planned, split
        self._phase_split = NONE  # the first launch of the second phase, once it has come
        self._launches: list[ProgramLaunch] = []
        self._intervals: list[LiveInterval] = []
        self._reads: list[Runs] = []
        self._writes: list[Runs] = []
        self._present = {name: [NONE] * each.num_sections for name, each in graph.buffers.items()}
        self._codes: dict[Section, dict[Form, int]] = {}  # the present intervals of codes
        self._filled = FilledChannels()
        self._bridged = {bridge.buffer for bridge in plan.bridges}
        self._transfers = by_section(plan, coded=False)  # to come, the next one last
        self._coded = by_section(plan, coded=True)  # to come, the next one last
        self._encoded_after = last_launches_before_codes(graph, plan, planned)
        self._slot_start: dict[int, int] = {}
        self._sums = {number: slot.sums for number, slot in enumerate(plan.slots) if slot.sums}

    def program(self) -> Program:
        """The program, once all launches are visited."""
        if self._phase_split == NONE:
            self._phase_split = len(self._launches)
        self._pin_outputs()
        parts = tuple(self._launches), self._phase_split, tuple(self._intervals)
        return Program(self._graph, self._plan, *parts, tuple(self._reads), tuple(self._writes))

    def visit(self, number: int) -> None:
        """Add a launch of the plan, with the recodes ahead of it and behind it."""
        launch = self._planned[number]
        pass_ = self._graph.passes[launch.pass_index]
        if number == self._split:
            self._phase_split = len(self._launches)
        self._slot_start.setdefault(launch.slot, len(self._launches))
        for use in pass_.reads if self._coded else ():
            self._decode(launch, use)
        index = self._add(launch)
        reads = tuple([self._used(index, use) for use in pass_.reads])
        writes = [self._touched(index, launch, pass_, use) for use in pass_.writes]
        starting = self._encoded_after.get(number, [])
        for use in pass_.writes if starting else ():
            for form in use.also:
                writes += self._left_codes(index, use, form, starting)
        self._reads.append(reads)
        self._writes.append(tuple(writes))
        self._encode(launch, starting)

    def _touched(self, index: int, launch: ProgramLaunch, pass_: Pass, use: Use) -> tuple[int, ...]:
        """The live intervals that launch `index` writes by a use."""
        adds = pass_.reduction and use.whole and launch.start > 0
        fresh = not adds and all(read.buffer != use.buffer for read in pass_.reads)
        touched = (self._written if fresh else self._used)(index, use)
        sums = self._sums.get(launch.slot, 0) if use.whole else 0
        if sums and fresh:
            self._shorten(index, touched[0], sums)
        for number in touched:
            live = self._intervals[number]
            live.written, live.clean = index, False
            if use.channels is not None:
                self._filled.add(number, use.channels)
            if self._codes and not launch.recompute:
                self._codes.pop((live.buffer, live.section), None)
        return touched

    def _shorten(self, index: int, number: int, sums: int) -> None:
        """Leave interval `number`, of a weight gradient's sums, so many rows."""
        launch, live = self._launches[index], self._intervals[number]
        pass_, buffer = self._graph.passes[launch.pass_index], self._graph.buffers[live.buffer]
        least, whole = pass_.least_sums, (launch.start, launch.stop) == (0, pass_.domain)
        fits = 0 < least <= sums < buffer.rows and (sums - 1) % (least - 1) == 0
        if not (fits and whole) or live.buffer in self._bridged:
            raise ScheduleError(
                f"the plan has {self._pass_name(index)} [{launch.start}, {launch.stop}) leave "
                f"{sums} rows of {live.buffer}; it needs whole batches, at least {least} rows of "
                f"{buffer.rows}, and sums that stay"
            )
        live.nbytes = sums * buffer.row_nbytes

    def _used(self, index: int, use: Use) -> tuple[int, ...]:
        """The present intervals of the sections that launch `index` uses."""
        first, last = self._used_sections(index, use)
        touched = self._present[use.buffer][first:last]
        if NONE in touched or use.buffer in self._bridged:
            touched = [self._find(index, use, section) for section in range(first, last)]
            if len({self._intervals[number].form for number in touched}) > 1:
                raise ScheduleError(
                    f"the plan has {self._pass_name(index)} read {use.buffer} in two forms"
                )
        for number in touched:
            self._intervals[number].last = index
        return tuple(touched)

    def _written(self, index: int, use: Use) -> tuple[int, ...]:
        """The intervals that launch `index` writes: present ones that lack its channels, or new."""
        present = self._present[use.buffer]
        touched = [
            self._find(index, use, section)
            if use.channels and self._filled.has_only_others(present[section], use.channels)
            else self._open(index, use.buffer, section)
            for section in range(*self._used_sections(index, use))
        ]
        for number in touched:
            self._intervals[number].last = index
        return tuple(touched)

    def _used_sections(self, index: int, use: Use) -> tuple[int, int]:
        return used_sections(self._graph, self._launches[index], use)

    def _find(self, index: int, use: Use, section: int) -> int:
        """The section's present interval; a new one after a prefetch or of a fresh input.

        That of its code where the use can read it.
        """
        buffer, slot = use.buffer, self._launches[index].slot
        coded = due_code(self._coded, (buffer, section), slot, use) if use.forms else None
        if coded is not None:
            self._coded[buffer, section].remove(coded)
            if coded.tier is not None:
                return self._prefetch(index, section, coded)
        codes = self._codes.get((buffer, section), {}) if use.forms else {}
        for form in use.forms:
            if form in codes:
                return codes[form]
        prefetched = self._prefetch_raw(index, (buffer, section), slot)
        if prefetched is not None:
            return prefetched
        if self._present[buffer][section] == NONE:
            if buffer not in self._graph.inputs:
                raise ScheduleError(
                    f"the plan has {self._pass_name(index)} read {buffer} section {section}, "
                    "which nothing wrote before"
                )
            live = self._intervals[self._open(index, buffer, section)]
            live.first = max(0, self._phase_split)
            live.written = live.first - 1
        self._check_leaves(index, self._intervals[self._present[buffer][section]])
        return self._present[buffer][section]

    def _prefetch_raw(self, index: int, section: Section, slot: int) -> int | None:
        """The interval of raw values that a prefetch due in this slot begins, if one is."""
        bridge = due_raw(self._transfers, section, slot)
        if bridge is None:
            return None
        self._transfers[section].pop()
        return self._prefetch(index, section[1], bridge)

    def _prefetch(self, index: int, section: int, bridge: Bridge) -> int:
        """The interval that a prefetch begins."""
        buffer, form = bridge.buffer, bridge.form
        raw = form == RAW or bridge.zero_copy
        previous = self._present[buffer][section] if raw else self._code_of(section, bridge)
        before = self._intervals[previous]
        self._check_leaves(index, before)
        if self._launches[before.last].slot > bridge.after:
            raise ScheduleError(
                f"the plan offloads {buffer} after slot {bridge.after}, "
                f"but {self._pass_name(before.last)} still uses it"
            )
        before.tier = bridge.tier or HOST
        before.is_offloaded = not before.clean or before.tier != self._tier_of(previous)
        if bridge.zero_copy:
            self._encode_straight(before, bridge)
        number = self._open(index, buffer, section, form)
        self._filled.copy(number, previous)
        live = self._intervals[number]
        live.previous, live.clean, live.needed_by = previous, True, bridge.needed_by
        live.earliest_prefetch = self._slot_start.get(bridge.earliest_prefetch, index)
        return number

    def _encode_straight(self, before: LiveInterval, bridge: Bridge) -> None:
        """Have a raw interval leave as the code of a bridge."""
        if not may_be_straight(bridge):
            raise ScheduleError(
                f"the plan encodes {bridge.buffer} as {bridge.form} straight to {bridge.tier}; "
                "only codes of a fixed size are, and only to the host: set zero_copy to False"
            )
        before.leaves_as, before.is_offloaded = bridge.form, True

    def _check_leaves(self, index: int, live: LiveInterval) -> None:
        if live.leaves_as is not None:
            where = f"{live.buffer} section {live.section}, which has left as {live.leaves_as}"
            raise ScheduleError(f"the plan has {self._pass_name(index)} use {where}")

    def _tier_of(self, number: int) -> str:
        """The tier that has the bytes of a prefetched interval."""
        return self._intervals[offload_source(self._intervals, number)].tier

    def _decode(self, launch: ProgramLaunch, use: Use) -> None:
        """Add the recodes of the codes that the launch needs raw."""
        due: dict[int, Bridge] = {}
        for section in range(*used_sections(self._graph, launch, use)):
            bridge = due_decode(self._coded, (use.buffer, section), launch.slot, use)
            if bridge is not None:
                due[section] = bridge
        for sections, form in runs_of([(section, each.form) for section, each in due.items()]):
            index = self._add_recode(launch, use.buffer, sections, form, RAW)
            codes = []
            for section in sections:
                bridge = due[section]
                self._coded[use.buffer, section].remove(bridge)
                there = bridge.tier is None
                codes.append(
                    self._code_of(section, bridge)
                    if there
                    else self._prefetch(index, section, bridge)
                )
            raw = []
            for section, code in zip(sections, codes, strict=True):
                self._intervals[code].last = index
                before = self._present[use.buffer][section]
                raw.append(self._open(index, use.buffer, section))
                self._filled.copy(raw[-1], before)
            self._reads.append((tuple(codes),))
            self._writes.append((tuple(raw),))

    def _code_of(self, section: int, bridge: Bridge) -> int:
        """The present interval of the code with which a bridge ends."""
        code = self._codes.get((bridge.buffer, section), {}).get(bridge.form, NONE)
        if code == NONE:
            raise ScheduleError(
                f"the plan wants the {bridge.form} of {bridge.buffer} section {section} in slot "
                f"{bridge.needed_by}, which none has left since slot {bridge.after}"
            )
        return code

    def _left_codes(
        self, index: int, use: Use, form: Form, starting: list[tuple[int, Bridge]]
    ) -> Iterator[tuple[int, ...]]:
        """The codes of all sections that the launch writes, where the plan wants those of all."""
        wanted = {
            section: (section, bridge)
            for section, bridge in starting
            if (bridge.buffer, bridge.form) == (use.buffer, form)
        }
        sections = range(*self._used_sections(index, use))
        if all(section in wanted for section in sections):
            for section in sections:
                starting.remove(wanted[section])
            yield tuple([self._open(index, use.buffer, each, form) for each in sections])

    def _encode(self, launch: ProgramLaunch, starting: list[tuple[int, Bridge]]) -> None:
        """Add the recodes that leave these codes behind a launch."""
        for buffer in dict.fromkeys(bridge.buffer for _, bridge in starting):
            due = [(at, bridge.form) for at, bridge in starting if bridge.buffer == buffer]
            for sections, form in runs_of(sorted(due)):
                index = self._add_recode(launch, buffer, sections, RAW, form)
                for section in sections:  # where a reader took a code, raw values may be away
                    self._prefetch_raw(index, (buffer, section), launch.slot)
                raw = [self._present[buffer][section] for section in sections]
                for number in raw:
                    self._intervals[number].last = index
                codes = tuple([self._open(index, buffer, each, form) for each in sections])
                self._reads.append((tuple(raw),))
                self._writes.append((codes,))

    def _add(self, launch: ProgramLaunch) -> int:
        self._launches.append(launch)
        return len(self._launches) - 1

    def _add_recode(
        self, launch: ProgramLaunch, buffer: str, sections: Sequence[int], *forms: Form
    ) -> int:
        bounds = self._graph.buffers[buffer].bounds
        rows = bounds(sections[0])[0], bounds(sections[-1])[1]
        where = launch.segment, launch.slot, NONE
        return self._add(ProgramLaunch(*where, *rows, False, Recode(buffer, *forms)))

    def _pass_name(self, index: int) -> str:
        launch = self._launches[index]
        if launch.recode is not None:
            return f"recode {launch.recode.buffer}"
        return self._graph.passes[launch.pass_index].name

    def _open(self, index: int, buffer: str, section: int, form: Form = RAW) -> int:
        number = len(self._intervals)
        nbytes = in_form(self._graph.buffers[buffer], form).section_nbytes(section)
        self._intervals.append(LiveInterval(buffer, section, index, index, index, nbytes, form))
        if form == RAW:
            self._present[buffer][section] = number
        else:
            self._codes.setdefault((buffer, section), {})[form] = number
        return number

    def _pin_outputs(self) -> None:
        """Keep the outputs of each phase until its end, when they are handed out."""
        outputs, replaced = set(self._graph.outputs), {live.previous for live in self._intervals}
        for number, live in enumerate(self._intervals):
            if live.buffer in outputs and number not in replaced and live.form == RAW:
                split = self._phase_split
                end = split if live.written < split else len(self._launches)
                live.last = max(live.last, end - 1)
                live.pinned_to_phase_end = True

"""Building a program: the walk through a plan's launches that opens and ends live intervals."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from ...errors import ScheduleError
from ...graph import CODECS, RAW, Form, Graph, Need, Pass, Use, in_form, overlap
from ..ir.plan import Bridge, Plan
from .program import (
    NONE,
    LiveInterval,
    Program,
    ProgramLaunch,
    Recode,
    Runs,
    end_of_last,
    unroll,
)

Channels: TypeAlias = tuple[int, int]
Section: TypeAlias = tuple[str, int]


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
        self._codes: dict[Section, int] = {}  # the present intervals of codes
        self._filled: dict[int, tuple[Channels, ...]] = {}
        self._bridged = {bridge.buffer for bridge in plan.bridges}
        self._transfers = _by_section(plan, coded=False)  # to come, the next one last
        self._coded = _by_section(plan, coded=True)  # to come, the next one last
        self._encoded_after = _last_launches_before_codes(graph, plan, planned)
        self._slot_start: dict[int, int] = {}

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
        for number in touched:
            live = self._intervals[number]
            live.written, live.clean = index, False
            if use.channels is not None:
                self._filled[number] = (*self._filled.get(number, ()), use.channels)
            if self._codes and not launch.recompute:
                self._codes.pop((live.buffer, live.section), None)
        return touched

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
        touched = [
            self._find(index, use, section)
            if use.channels and self._has_only_other_channels(use.buffer, section, use.channels)
            else self._open(index, use.buffer, section)
            for section in range(*self._used_sections(index, use))
        ]
        for number in touched:
            self._intervals[number].last = index
        return tuple(touched)

    def _used_sections(self, index: int, use: Use) -> tuple[int, int]:
        return _sections(self._graph, self._launches[index], use)

    def _has_only_other_channels(self, buffer: str, section: int, channels: Channels) -> bool:
        filled = self._filled.get(self._present[buffer][section])
        return filled is not None and not any(overlap(channels, other) for other in filled)

    def _find(self, index: int, use: Use, section: int) -> int:
        """The section's present interval; a new one after a prefetch or of a fresh input.

        That of its code where the use can read it.
        """
        buffer, slot = use.buffer, self._launches[index].slot
        coded = _due(self._coded, (buffer, section), slot) if use.forms else None
        if coded is not None and coded.form in use.forms:
            self._coded[buffer, section].pop()
            if coded.tier is not None:
                return self._prefetch(index, section, coded)
        code = self._codes.get((buffer, section), NONE)
        if code != NONE and self._intervals[code].form in use.forms:
            return code
        bridge = _due(self._transfers, (buffer, section), slot)
        if bridge is not None:
            self._transfers[buffer, section].pop()
            return self._prefetch(index, section, bridge)
        if self._present[buffer][section] == NONE:
            if buffer not in self._graph.inputs:
                raise ScheduleError(
                    f"the plan has {self._pass_name(index)} read {buffer} section {section}, "
                    "which nothing wrote before"
                )
            live = self._intervals[self._open(index, buffer, section)]
            live.first = max(0, self._phase_split)
            live.written = live.first - 1
        return self._present[buffer][section]

    def _prefetch(self, index: int, section: int, bridge: Bridge) -> int:
        """The interval that a prefetch begins."""
        buffer, form = bridge.buffer, bridge.form
        raw = form == RAW
        previous = self._present[buffer][section] if raw else self._codes[buffer, section]
        before = self._intervals[previous]
        if self._launches[before.last].slot > bridge.after:
            raise ScheduleError(
                f"the plan offloads {buffer} after slot {bridge.after}, "
                f"but {self._pass_name(before.last)} still uses it"
            )
        before.is_offloaded = not before.clean
        number = self._open(index, buffer, section, form)
        self._fill_as(number, previous)
        live = self._intervals[number]
        live.previous, live.clean = previous, True
        live.earliest_prefetch = self._slot_start.get(bridge.earliest_prefetch, index)
        return number

    def _decode(self, launch: ProgramLaunch, use: Use) -> None:
        """Add the recodes of the codes that the launch needs raw."""
        due: list[tuple[int, Form]] = []
        for section in range(*_sections(self._graph, launch, use)):
            bridge = _due(self._coded, (use.buffer, section), launch.slot)
            if bridge is None or bridge.form in use.forms:
                continue
            if CODECS[bridge.form].gives is Need.VALUES:
                due.append((section, bridge.form))
        for sections, form in _runs(due):
            index = self._add_recode(launch, use.buffer, sections, form, RAW)
            codes = []
            for section in sections:
                bridge = self._coded[use.buffer, section].pop()
                there = bridge.tier is None
                code = self._codes[use.buffer, section] if there else NONE
                codes.append(code if there else self._prefetch(index, section, bridge))
            raw = []
            for section, code in zip(sections, codes, strict=True):
                self._intervals[code].last = index
                before = self._present[use.buffer][section]
                raw.append(self._open(index, use.buffer, section))
                self._fill_as(raw[-1], before)
            self._reads.append((tuple(codes),))
            self._writes.append((tuple(raw),))

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
            for sections, form in _runs(sorted(due)):
                index = self._add_recode(launch, buffer, sections, RAW, form)
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
            self._codes[buffer, section] = number
        return number

    def _fill_as(self, number: int, other: int) -> None:
        """Note that interval `number` has the channels that another one has."""
        if other in self._filled:
            self._filled[number] = self._filled[other]

    def _pin_outputs(self) -> None:
        """Keep the outputs of each phase until its end, when they are handed out."""
        outputs, replaced = set(self._graph.outputs), {live.previous for live in self._intervals}
        for number, live in enumerate(self._intervals):
            if live.buffer in outputs and number not in replaced and live.form == RAW:
                split = self._phase_split
                end = split if live.written < split else len(self._launches)
                live.last = max(live.last, end - 1)
                live.pinned_to_phase_end = True


def _by_section(plan: Plan, *, coded: bool) -> dict[Section, list[Bridge]]:
    """The bridges of each section, raw or coded, the next one last."""
    found: dict[Section, list[Bridge]] = {}
    for bridge in sorted(plan.bridges, key=lambda each: each.needed_by, reverse=True):
        if (bridge.form != RAW) is coded:
            for section in range(bridge.first, bridge.first + bridge.count):
                found.setdefault((bridge.buffer, section), []).append(bridge)
    return found


def _due(bridges: Mapping[Section, list[Bridge]], section: Section, slot: int) -> Bridge | None:
    """The bridge that ends with a use of the section in this slot."""
    of_section = bridges.get(section)
    return of_section[-1] if of_section and slot >= of_section[-1].needed_by else None


def _sections(graph: Graph, launch: ProgramLaunch, use: Use) -> tuple[int, int]:
    """The first section that a launch uses, and the one behind the last."""
    buffer = graph.buffers[use.buffer]
    start, stop = use.rows(launch.start, launch.stop, buffer)
    return start // buffer.section, -(-stop // buffer.section)


def _last_launches_before_codes(
    graph: Graph, plan: Plan, launches: Sequence[ProgramLaunch]
) -> dict[int, list[tuple[int, Bridge]]]:
    """By launch, the sections of which it is the last use before their code, with the bridge."""
    starting: dict[int, list[Bridge]] = {}
    for bridge in plan.bridges:
        if bridge.form != RAW:
            starting.setdefault(bridge.after, []).append(bridge)
    last: dict[tuple[int, Bridge], int] = {}
    for number, launch in enumerate(launches if starting else ()):
        for bridge in starting.get(launch.slot, ()):
            pass_ = graph.passes[launch.pass_index]
            for use in (*pass_.reads, *pass_.writes):
                if use.buffer == bridge.buffer:
                    covered = range(bridge.first, bridge.first + bridge.count)
                    for section in range(*_sections(graph, launch, use)):
                        if section in covered:
                            last[section, bridge] = number
    found: dict[int, list[tuple[int, Bridge]]] = {}
    for coded, number in last.items():
        found.setdefault(number, []).append(coded)
    return found


def _runs(coded: Sequence[tuple[int, Form]]) -> Iterator[tuple[list[int], Form]]:
    """Neighbouring sections with the same form."""
    run: list[int] = []
    form = RAW
    for section, its_form in coded:
        if run and (section != run[-1] + 1 or its_form != form):
            yield run, form
            run = []
        run.append(section)
        form = its_form
    if run:
        yield run, form

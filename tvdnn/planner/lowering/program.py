"""Program: a plan unrolled into compute launches, and the live intervals of every section."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

from ...errors import ScheduleError
from ...graph import Graph, Use, overlap
from ..ir.costs import Costs
from ..ir.plan import Plan, Transfer

# The number of no live interval.
NONE = -1

Channels: TypeAlias = tuple[int, int]
Runs: TypeAlias = tuple[tuple[int, ...], ...]  # by use of a launch, numbers of live intervals


class ProgramLaunch(NamedTuple):
    """One launch of a pass over domain rows [start, stop), in a segment and slot of the plan."""

    segment: int
    slot: int
    pass_index: int
    start: int
    stop: int
    recompute: bool


@dataclass(slots=True)
class LiveInterval:
    """A section on the device from launch `first` through launch `last`.

    As in register allocation, an offload and its prefetch split the life of a section into
    intervals.
    """

    buffer: str
    section: int
    first: int
    last: int
    written: int  # launch that wrote its bytes last
    nbytes: int
    previous: int = NONE  # number of the interval before the prefetch that begins this one
    clean: bool = False  # no launch has written it: the host has the same bytes
    is_offloaded: bool = False  # it ends with an offload; a clean one needs none
    pinned_to_phase_end: bool = False  # it lasts until its phase of the step has ended
    earliest_prefetch: int = 0  # launch before which no prefetch is issued

    @property
    def is_prefetched(self) -> bool:
        """True if the interval begins with a prefetch."""
        return self.previous != NONE


@dataclass(frozen=True)
class Program:
    """A plan's launches and the live intervals that they imply."""

    graph: Graph
    plan: Plan
    launches: tuple[ProgramLaunch, ...]
    phase_split: int  # first launch of the second phase (autograd mode), else their number
    intervals: tuple[LiveInterval, ...]
    reads: tuple[Runs, ...]  # by launch
    writes: tuple[Runs, ...]  # by launch

    @cached_property
    def groups(self) -> list[list[tuple[int, int]]]:
        """The numbers of the live intervals by group, each with its offset in the group in bytes.

        The sections that one launch needs contiguous are in one group.
        """
        found = []
        for numbers in _contiguous_groups(self):
            lives = [self.intervals[number] for number in numbers]
            buffer, first = self.graph.buffers[lives[0].buffer], min(each.section for each in lives)
            pitch = buffer.section * buffer.row_nbytes
            offsets = ((each.section - first) * pitch for each in lives)
            found.append(list(zip(numbers, offsets, strict=True)))
        return found

    def launch_seconds(self, costs: Costs) -> list[float]:
        """The seconds of each launch."""
        passes = self.graph.passes
        return [costs.launch_s(passes[at.pass_index], at.stop - at.start) for at in self.launches]

    def offload_source(self, number: int) -> int:
        """The number of the interval whose offload made the host copy of prefetched `number`."""

        number = self.intervals[number].previous
        while not self.intervals[number].is_offloaded:
            number = self.intervals[number].previous
        return number


def unroll(graph: Graph, plan: Plan) -> Iterator[ProgramLaunch]:
    """The launches of a plan in order: by segment, then block, then slot, then run."""
    slot_base = 0
    for index, segment in enumerate(plan.segments):
        domain = graph.passes[segment.slots[0].pass_index].domain
        block = segment.block or max(1, domain)
        for low in range(0, max(1, domain), block):
            high = min(domain, low + block)
            for number, slot in enumerate(segment.slots, slot_base):
                run = slot.run or block
                for start in range(low, max(high, low + 1), run):
                    stop = min(high, start + run)
                    yield ProgramLaunch(index, number, slot.pass_index, start, stop, slot.recompute)
        slot_base += len(segment.slots)


def end_of_last(
    launches: tuple[ProgramLaunch, ...], belongs: Callable[[ProgramLaunch], bool]
) -> int:
    """The index after the last launch that belongs and is no recompute; 0 where there is none."""
    found = (i for i, each in enumerate(launches) if not each.recompute and belongs(each))
    return 1 + max(found, default=-1)


def build_program(graph: Graph, plan: Plan) -> Program:
    """Unroll `plan` and derive the live intervals of every section.

    Raises ScheduleError where the plan reads a section before it is written, or uses it after its
    offload.
    """
    launches, split = tuple(unroll(graph, plan)), graph.phase_split
    phase_split = len(launches)
    if split < len(graph.passes):
        phase_split = end_of_last(launches, lambda launch: launch.pass_index < split)
    builder = _IntervalBuilder(graph, plan, launches, phase_split)
    touched = [builder.visit(index) for index in range(len(launches))]
    builder.pin_outputs()
    reads, writes = (tuple(runs[kind] for runs in touched) for kind in (0, 1))
    return Program(graph, plan, launches, phase_split, tuple(builder.intervals), reads, writes)


def _contiguous_groups(prog: Program) -> list[list[int]]:
    leader = list(range(len(prog.intervals)))

    def find(number: int) -> int:
        while leader[number] != number:
            leader[number] = leader[leader[number]]
            number = leader[number]
        return number

    for uses in (*prog.reads, *prog.writes):
        for run in uses:
            if len(run) > 1:
                root = find(run[0])
                for number in run[1:]:
                    leader[find(number)] = root
    groups: dict[int, list[int]] = {}
    for number in range(len(leader)):
        groups.setdefault(find(number), []).append(number)
    return list(groups.values())


class _IntervalBuilder:
    """Walks the launches in order and opens, extends and closes the live intervals of sections.

    A write of channels that the present interval has not been given yet extends that interval.
    Every other write that does not read its buffer opens a new one.
    """

    def __init__(
        self, graph: Graph, plan: Plan, launches: tuple[ProgramLaunch, ...], phase_split: int
    ) -> None:
        self.intervals: list[LiveInterval] = []
        self._graph = graph
        self._launches = launches
        self._phase_split = phase_split
        self._present = {name: [NONE] * each.num_sections for name, each in graph.buffers.items()}
        self._filled: dict[int, tuple[Channels, ...]] = {}
        self._transfers: dict[str, dict[int, list[Transfer]]] = {}
        for transfer in sorted(plan.transfers, key=lambda each: each.needed_by, reverse=True):
            of_buffer = self._transfers.setdefault(transfer.buffer, {})
            for section in range(transfer.first, transfer.first + transfer.count):
                of_buffer.setdefault(section, []).append(transfer)
        self._slot_start: dict[int, int] = {}
        for index, launch in enumerate(launches):
            self._slot_start.setdefault(launch.slot, index)

    def visit(self, index: int) -> tuple[Runs, Runs]:
        """The live intervals that launch `index` reads and writes, per use of its pass."""
        launch = self._launches[index]
        pass_ = self._graph.passes[launch.pass_index]
        reads = tuple([self._used(index, use) for use in pass_.reads])
        writes = []
        for use in pass_.writes:
            adds = pass_.reduction and use.whole and launch.start > 0
            fresh = not adds and all(read.buffer != use.buffer for read in pass_.reads)
            touched = (self._written if fresh else self._used)(index, use)
            for number in touched:
                self.intervals[number].written = index
                self.intervals[number].clean = False
                if use.channels is not None:
                    self._filled[number] = (*self._filled.get(number, ()), use.channels)
            writes.append(touched)
        return reads, tuple(writes)

    def _used(self, index: int, use: Use) -> tuple[int, ...]:
        """The present intervals of the sections that launch `index` uses."""
        first, last = self._used_sections(index, use)
        touched = self._present[use.buffer][first:last]
        if NONE in touched or use.buffer in self._transfers:
            touched = [self._find(index, use.buffer, section) for section in range(first, last)]
        for number in touched:
            self.intervals[number].last = index
        return tuple(touched)

    def _written(self, index: int, use: Use) -> tuple[int, ...]:
        """The intervals that launch `index` writes: present ones that lack its channels, or new."""
        touched = [
            self._find(index, use.buffer, section)
            if use.channels and self._has_only_other_channels(use.buffer, section, use.channels)
            else self._open(index, use.buffer, section)
            for section in range(*self._used_sections(index, use))
        ]
        for number in touched:
            self.intervals[number].last = index
        return tuple(touched)

    def _used_sections(self, index: int, use: Use) -> tuple[int, int]:
        launch, buffer = self._launches[index], self._graph.buffers[use.buffer]
        start, stop = use.rows(launch.start, launch.stop, buffer)
        return start // buffer.section, -(-stop // buffer.section)

    def _has_only_other_channels(self, buffer: str, section: int, channels: Channels) -> bool:
        filled = self._filled.get(self._present[buffer][section])
        return filled is not None and not any(overlap(channels, other) for other in filled)

    def _find(self, index: int, buffer: str, section: int) -> int:
        """The section's present interval; a new one after a prefetch or of a fresh input."""
        transfers = self._transfers.get(buffer, {}).get(section)
        if transfers and self._launches[index].slot >= transfers[-1].needed_by:
            return self._prefetch(index, buffer, section, transfers.pop())
        if self._present[buffer][section] == NONE:
            if buffer not in self._graph.inputs:
                raise ScheduleError(
                    f"the plan has {self._pass_name(index)} read {buffer} section {section}, "
                    "which nothing wrote before"
                )
            live = self.intervals[self._open(index, buffer, section)]
            live.first = self._phase_split if index >= self._phase_split else 0
            live.written = live.first - 1
        return self._present[buffer][section]

    def _prefetch(self, index: int, buffer: str, section: int, transfer: Transfer) -> int:
        previous = self._present[buffer][section]
        before = self.intervals[previous]
        if self._launches[before.last].slot > transfer.offload_after:
            raise ScheduleError(
                f"the plan offloads {buffer} after slot {transfer.offload_after}, "
                f"but {self._pass_name(before.last)} still uses it"
            )
        before.is_offloaded = not before.clean
        number = self._open(index, buffer, section)
        if previous in self._filled:
            self._filled[number] = self._filled[previous]
        live = self.intervals[number]
        live.previous, live.clean = previous, True
        live.earliest_prefetch = self._slot_start[transfer.earliest_prefetch]
        return number

    def _pass_name(self, index: int) -> str:
        return self._graph.passes[self._launches[index].pass_index].name

    def _open(self, index: int, buffer: str, section: int) -> int:
        number = len(self.intervals)
        nbytes = self._graph.buffers[buffer].section_nbytes(section)
        self.intervals.append(LiveInterval(buffer, section, index, index, index, nbytes))
        self._present[buffer][section] = number
        return number

    def pin_outputs(self) -> None:
        """Keep the outputs of each phase until its end, when they are handed out."""
        outputs, replaced = set(self._graph.outputs), {live.previous for live in self.intervals}
        for number, live in enumerate(self.intervals):
            if live.buffer in outputs and number not in replaced:
                split = self._phase_split
                end = split if live.written < split else len(self._launches)
                live.last = max(live.last, end - 1)
                live.pinned_to_phase_end = True

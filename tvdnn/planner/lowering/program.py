"""Launches: a plan unrolled into compute launches, and the stays of every section between them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ...errors import ScheduleError
from ...graph import Graph, Use, meet
from ..ir.plan import Plan, Transfer

NONE = -1  # no stay

Channels: TypeAlias = tuple[int, int]


class Launch(NamedTuple):
    """One launch of a pass over domain rows [start, stop), in a segment and slot of the plan."""

    segment: int
    slot: int
    pass_index: int
    start: int
    stop: int
    recompute: bool


@dataclass(slots=True)
class Residency:
    """One stay of a section on the device, from launch `first` to launch `last`.

    `written` is the launch that wrote its bytes last; of a `clean` stay none did, and they lie on
    the host as well. A stay that `follows` another, by its number, began with a prefetch that
    `opens` no earlier than that launch. `leaves` ones end with an offload, which clean ones do
    without; `held` ones last until their half of the step has ended.
    """

    buffer: str
    section: int
    first: int
    last: int
    written: int
    nbytes: int
    follows: int = NONE
    clean: bool = False
    leaves: bool = False
    held: bool = False
    opens: int = 0

    @property
    def fetched(self) -> bool:
        """Whether it began with a prefetch."""
        return self.follows != NONE


@dataclass(frozen=True, slots=True)
class Program:
    """A plan's launches and the live intervals that they imply."""

    launches: tuple[Launch, ...]
    phase_split: int  # first launch of the second phase (autograd mode), else their number
    residencies: tuple[Residency, ...]
    reads: tuple[tuple[tuple[int, ...], ...], ...]  # by launch and use, numbers of live intervals
    writes: tuple[tuple[tuple[int, ...], ...], ...]  # by launch and use, numbers of live intervals

    def source(self, number: int) -> int:
        """The stay whose offload left on the host what the fetched stay `number` begins with."""
        number = self.residencies[number].follows
        while not self.residencies[number].leaves:
            number = self.residencies[number].follows
        return number


def unroll(graph: Graph, plan: Plan) -> Iterator[Launch]:
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
                    yield Launch(index, number, slot.pass_index, start, stop, slot.recompute)
        slot_base += len(segment.slots)


def find_cut(graph: Graph, launches: tuple[Launch, ...]) -> int:
    """Index of the first launch of the second half (autograd mode), else the number of launches."""
    if graph.phase_split == len(graph.passes):
        return len(launches)
    return behind(launches, lambda launch: launch.pass_index < graph.phase_split)


def behind(launches: tuple[Launch, ...], belongs: Callable[[Launch], bool]) -> int:
    """The launch behind the last of those that belong and make nothing again; 0 where none does."""
    found = (i for i, each in enumerate(launches) if not each.recompute and belongs(each))
    return 1 + max(found, default=-1)


def program(graph: Graph, plan: Plan) -> Program:
    """Unroll `plan` and derive when every section is on the device."""
    launches = tuple(unroll(graph, plan))
    cut = find_cut(graph, launches)
    stays = _Stays(graph, plan, launches, cut)
    reads, writes = [], []
    for index in range(len(launches)):
        read, written = stays.visit(index)
        reads.append(read)
        writes.append(written)
    stays.hold_outputs()
    return Program(launches, cut, tuple(stays.all), tuple(reads), tuple(writes))


def side_by_side(prog: Program) -> list[list[int]]:
    """Residencies grouped so that what one launch covers as a run lies in one group."""
    leader = list(range(len(prog.residencies)))

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


class _Stays:
    """Walks the launches in order and opens, extends and closes the stays of sections.

    What writes channels that a stay has not yet been given fills the stay, and opens none.
    """

    def __init__(self, graph: Graph, plan: Plan, launches: tuple[Launch, ...], cut: int) -> None:
        self.all: list[Residency] = []
        self._graph = graph
        self._launches = launches
        self._cut = cut
        self._present = {name: [NONE] * each.num_sections for name, each in graph.buffers.items()}
        self._filled: dict[int, tuple[Channels, ...]] = {}
        self._moves: dict[str, dict[int, list[Transfer]]] = {}
        for transfer in sorted(plan.transfers, key=lambda t: t.needed_by, reverse=True):
            moves = self._moves.setdefault(transfer.buffer, {})
            for section in range(transfer.first, transfer.first + transfer.count):
                moves.setdefault(section, []).append(transfer)
        self._slot_start: dict[int, int] = {}
        for index, launch in enumerate(launches):
            self._slot_start.setdefault(launch.slot, index)

    def visit(self, index: int) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        """Residencies that launch `index` reads and writes, per use of its pass."""
        launch = self._launches[index]
        pass_ = self._graph.passes[launch.pass_index]
        reads = tuple([self._found(index, use) for use in pass_.reads])
        writes = []
        for use in pass_.writes:
            adds = pass_.reduction and use.whole and launch.start > 0
            fresh = not adds and all(read.buffer != use.buffer for read in pass_.reads)
            touched = (self._written if fresh else self._found)(index, use)
            for number in touched:
                self.all[number].written = index
                self.all[number].clean = False
                if use.channels is not None:
                    self._filled[number] = (*self._filled.get(number, ()), use.channels)
            writes.append(touched)
        return reads, tuple(writes)

    def _found(self, index: int, use: Use) -> tuple[int, ...]:
        """The present stays of what launch `index` uses."""
        first, last = self._sections(index, use)
        touched = self._present[use.buffer][first:last]
        if NONE in touched or use.buffer in self._moves:
            touched = [self._find(index, use.buffer, section) for section in range(first, last)]
        for number in touched:
            self.all[number].last = index
        return tuple(touched)

    def _written(self, index: int, use: Use) -> tuple[int, ...]:
        """New stays of what launch `index` writes; or those that have room for its channels."""
        touched = [
            self._find(index, use.buffer, section)
            if use.channels and self._has_room(use.buffer, section, use.channels)
            else self._open(index, use.buffer, section)
            for section in range(*self._sections(index, use))
        ]
        for number in touched:
            self.all[number].last = index
        return tuple(touched)

    def _sections(self, index: int, use: Use) -> tuple[int, int]:
        """Sections [first, last) that launch `index` uses."""
        launch, buffer = self._launches[index], self._graph.buffers[use.buffer]
        start, stop = use.rows(launch.start, launch.stop, buffer)
        return start // buffer.section, -(-stop // buffer.section)

    def _has_room(self, buffer: str, section: int, channels: Channels) -> bool:
        """Whether the section's present stay has been given channels, but none of these."""
        filled = self._filled.get(self._present[buffer][section])
        return filled is not None and not any(meet(channels, other) for other in filled)

    def _find(self, index: int, buffer: str, section: int) -> int:
        """The section's present stay; a new one if it comes back, or is an input's first."""
        moves = self._moves.get(buffer, {}).get(section)
        if moves and self._launches[index].slot >= moves[-1].needed_by:
            return self._fetch(index, buffer, section, moves.pop())
        if self._present[buffer][section] == NONE:
            if buffer not in self._graph.inputs:
                raise ScheduleError(
                    f"the plan has {self._pass_name(index)} read {buffer} section {section}, "
                    "which nothing wrote before"
                )
            stay = self.all[self._open(index, buffer, section)]
            stay.first = self._cut if index >= self._cut else 0
            stay.written = stay.first - 1
        return self._present[buffer][section]

    def _fetch(self, index: int, buffer: str, section: int, move: Transfer) -> int:
        gone = self._present[buffer][section]
        before = self.all[gone]
        if self._launches[before.last].slot > move.offload_after:
            raise ScheduleError(
                f"the plan offloads {buffer} after slot {move.offload_after}, "
                f"but {self._pass_name(before.last)} still uses it"
            )
        before.leaves = not before.clean
        number = self._open(index, buffer, section)
        if gone in self._filled:
            self._filled[number] = self._filled[gone]
        stay = self.all[number]
        stay.follows, stay.clean, stay.opens = gone, True, self._slot_start[move.earliest_prefetch]
        return number

    def _pass_name(self, index: int) -> str:
        return self._graph.passes[self._launches[index].pass_index].name

    def _open(self, index: int, buffer: str, section: int) -> int:
        number = len(self.all)
        nbytes = self._graph.buffers[buffer].section_nbytes(section)
        self.all.append(Residency(buffer, section, index, index, index, nbytes))
        self._present[buffer][section] = number
        return number

    def hold_outputs(self) -> None:
        """Keep outputs until handed out: those of the first half at the cut, others at the end."""
        outputs, gone = set(self._graph.outputs), {stay.follows for stay in self.all}
        for number, stay in enumerate(self.all):
            if stay.buffer in outputs and number not in gone:
                end = self._cut if stay.written < self._cut else len(self._launches)
                stay.last = max(stay.last, end - 1)
                stay.held = True

"""Launches: a plan unrolled into compute launches, and the stays of every section between them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ..errors import ScheduleError
from ..graph import Graph, Use, meet
from .plan import Plan, Transfer

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

    `written` is the launch that wrote its bytes last. `fetched` stays began with a prefetch that
    `opens` no earlier than that launch, `leaves` ones end with an offload, `held` ones last until
    their half of the step has ended. A section's stays are numbered by `stay`.
    """

    buffer: str
    section: int
    stay: int
    first: int
    last: int
    written: int
    nbytes: int
    fetched: bool = False
    leaves: bool = False
    held: bool = False
    opens: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """A plan's launches and the residencies that they imply.

    `cut` is the first launch of the second half (autograd mode), else the number of launches.
    `reads` and `writes` are by launch and use the numbers of the residencies touched.
    """

    launches: tuple[Launch, ...]
    cut: int
    residencies: tuple[Residency, ...]
    reads: tuple[tuple[tuple[int, ...], ...], ...]
    writes: tuple[tuple[tuple[int, ...], ...], ...]


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
    if graph.cut == len(graph.passes):
        return len(launches)
    for index, launch in enumerate(launches):
        if launch.recompute or launch.pass_index >= graph.cut:
            return index
    return len(launches)


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
        self._current: dict[tuple[str, int], int] = {}
        self._filled: dict[int, tuple[Channels, ...]] = {}
        self._moves: dict[tuple[str, int], list[Transfer]] = {}
        for transfer in sorted(plan.transfers, key=lambda t: t.back, reverse=True):
            for section in range(transfer.first, transfer.first + transfer.count):
                self._moves.setdefault((transfer.buffer, section), []).append(transfer)
        self._row_nbytes = {name: buffer.row_nbytes for name, buffer in graph.buffers.items()}
        self._slot_start: dict[int, int] = {}
        for index, launch in enumerate(launches):
            self._slot_start.setdefault(launch.slot, index)

    def visit(self, index: int) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        """Residencies that launch `index` reads and writes, per use of its pass."""
        launch = self._launches[index]
        pass_ = self._graph.passes[launch.pass_index]
        read_names = [use.buffer for use in pass_.reads]
        reads = [self._touch(index, launch, use, fresh=False) for use in pass_.reads]
        writes = []
        for use in pass_.writes:
            adds = pass_.reduction and use.whole and launch.start > 0
            fresh = not adds and use.buffer not in read_names
            touched = self._touch(index, launch, use, fresh=fresh)
            self._write(index, use, touched)
            writes.append(touched)
        return tuple(reads), tuple(writes)

    def _touch(self, index: int, launch: Launch, use: Use, *, fresh: bool) -> tuple[int, ...]:
        buffer = self._graph.buffers[use.buffer]
        start, stop = use.rows(launch.start, launch.stop, buffer)
        touched = []
        for section in buffer.sections_of(start, stop):
            opens = fresh and not self._has_room(use, section)
            number = (self._open if opens else self._find)(index, use.buffer, section)
            self.all[number].last = index
            touched.append(number)
        return tuple(touched)

    def _write(self, index: int, use: Use, touched: tuple[int, ...]) -> None:
        for number in touched:
            self.all[number].written = index
            if use.channels is not None:
                self._filled[number] = (*self._filled.get(number, ()), use.channels)

    def _has_room(self, use: Use, section: int) -> bool:
        """Whether the section's present stay has been given channels, but none of the use's."""
        if use.channels is None:
            return False
        number = self._current.get((use.buffer, section))
        if number is None or number not in self._filled:
            return False
        return not any(meet(use.channels, other) for other in self._filled[number])

    def _find(self, index: int, buffer: str, section: int) -> int:
        """The section's present stay; a new one if it comes back, or is an input's first."""
        key = (buffer, section)
        moves = self._moves.get(key) if self._moves else None
        if moves and self._launches[index].slot >= moves[-1].back:
            return self._fetch(index, key, moves.pop())
        if key not in self._current:
            if buffer not in self._graph.inputs:
                raise ScheduleError(
                    f"the plan has {self._pass_name(index)} read {buffer} section {section}, "
                    "which nothing wrote before"
                )
            number = self._open(index, buffer, section)
            self.all[number].first = self._cut if index >= self._cut else 0
            self.all[number].written = self.all[number].first - 1
        return self._current[key]

    def _fetch(self, index: int, key: tuple[str, int], move: Transfer) -> int:
        before = self.all[self._current[key]]
        if self._launches[before.last].slot > move.leave:
            raise ScheduleError(
                f"the plan offloads {key[0]} after slot {move.leave}, "
                f"but {self._pass_name(before.last)} still uses it"
            )
        before.leaves = True
        filled = self._filled.get(self._current[key])
        number = self._open(index, *key)
        if filled is not None:
            self._filled[number] = filled
        self.all[number].fetched = True
        self.all[number].opens = self._slot_start[move.opens]
        return number

    def _pass_name(self, index: int) -> str:
        return self._graph.passes[self._launches[index].pass_index].name

    def _open(self, index: int, buffer: str, section: int) -> int:
        key, number = (buffer, section), len(self.all)
        stay = self.all[self._current[key]].stay + 1 if key in self._current else 0
        start, stop = self._graph.buffers[buffer].bounds(section)
        nbytes = (stop - start) * self._row_nbytes[buffer]
        self.all.append(Residency(buffer, section, stay, index, index, index, nbytes))
        self._current[key] = number
        return number

    def hold_outputs(self) -> None:
        """Keep outputs until handed out: those of the first half at the cut, others at the end."""
        outputs = set(self._graph.outputs)
        for stay in self.all:
            if stay.buffer in outputs and not stay.leaves:
                end = self._cut if stay.written < self._cut else len(self._launches)
                stay.last = max(stay.last, end - 1)
                stay.held = True

"""Program: a plan unrolled into compute launches, and the live intervals of every section."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

from ...graph import RAW, Form, Graph, Pass, in_form, is_packed, tail_of
from ..ir.costs import Costs, Forms, collective_s, num_ranges
from ..ir.plan import HOST, Plan
from ..ir.schedule import ROUTES, Lane, LanePair

# The number of no live interval.
NONE = -1

Runs: TypeAlias = tuple[tuple[int, ...], ...]  # by use of a launch, numbers of live intervals


class Recode(NamedTuple):
    """A change of the form of a buffer's sections."""

    buffer: str
    source: Form
    target: Form


class Tail(NamedTuple):
    """The tail of a code, in the slab from its encoding to its last decoding."""

    code: int  # the number of the live interval with which the code begins
    form: Form
    nbytes: int


class ProgramLaunch(NamedTuple):
    """One launch of a pass over domain rows [start, stop), in a segment and slot of the plan.

    Or one recode of rows [start, stop) of a buffer, ahead of a launch of the slot or behind one.
    """

    segment: int
    slot: int
    pass_index: int
    start: int
    stop: int
    recompute: bool
    recode: Recode | None = None  # `pass_index` is -1 then


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
    form: Form = RAW
    previous: int = NONE  # number of the interval before the prefetch that begins this one
    clean: bool = False  # no launch has written it: its tier has the same bytes
    is_offloaded: bool = False  # it ends with an offload; a clean one needs none
    tier: str = HOST  # in which an offload leaves it
    leaves_as: Form | None = None  # the form in which a kernel encodes it there; None: its own
    pinned_to_phase_end: bool = False  # it lasts until its phase of the step has ended
    earliest_prefetch: int = 0  # launch before which no prefetch is issued
    needed_by: int = NONE  # slot of the plan by which its bridge has it prefetched

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
            buffer = in_form(self.graph.buffers[lives[0].buffer], lives[0].form)
            first = min(each.section for each in lives)
            pitch = buffer.section * buffer.row_nbytes
            offsets = ((each.section - first) * pitch for each in lives)
            found.append(list(zip(numbers, offsets, strict=True)))
        return found

    @cached_property
    def forms(self) -> Mapping[int, Forms]:
        """By launch that reads or leaves codes, their forms."""
        coded = {number for number, live in enumerate(self.intervals) if live.form != RAW}
        found: dict[int, Forms] = {}
        for index, runs in enumerate(zip(self.reads, self.writes, strict=True) if coded else ()):
            numbers = [run[0] for run in (*runs[0], *runs[1]) if run[0] in coded]
            lives = (self.intervals[number] for number in numbers)
            if numbers:
                found[index] = tuple((live.buffer, live.form) for live in lives)
        return found

    @cached_property
    def counts(self) -> Mapping[int, int]:
        """By launch that makes a packed code, the number of the word for its count."""
        recodes = ((index, each.recode) for index, each in enumerate(self.launches))
        packing = (index for index, recode in recodes if recode and is_packed(recode.target))
        return {index: number for number, index in enumerate(packing)}

    @cached_property
    def tails(self) -> Mapping[int, Tail]:
        """By recode of a code with a tail, the tail."""
        found = {}
        for index, launch in enumerate(self.launches):
            if launch.recode is not None:
                code = (self.writes if launch.recode.source == RAW else self.reads)[index][0][0]
                live, buffer = self.intervals[code], self.graph.buffers[launch.recode.buffer]
                form = tail_of(buffer, live.form)
                if form is not None:
                    nbytes = in_form(buffer, form).section_nbytes(live.section)
                    found[index] = Tail(self.encoded_as(code), form, nbytes)
        return found

    def encoded_as(self, number: int) -> int:
        """The number of the interval with which the life of a code on the device began."""
        while self.intervals[number].previous != NONE:
            number = self.intervals[number].previous
        return number

    def lane_of(self, index: int) -> Lane:
        """The lane of a launch."""
        number = self.launches[index].pass_index
        reduces = number != NONE and self.graph.passes[number].ranks
        return Lane.REDUCE if reduces else Lane.COMPUTE

    def reduce_s(self, index: int, costs: Costs) -> float:
        """The seconds of a launch on the lane of sums over processes."""
        pass_ = self.graph.passes[self.launches[index].pass_index]
        nbytes = sum(self.intervals[n].nbytes for run in self.writes[index] for n in run)
        return collective_s(costs.links, pass_, nbytes)

    def launch_seconds(self, costs: Costs) -> list[float]:
        """The seconds of each launch."""
        return [self._seconds(index, each, costs) for index, each in enumerate(self.launches)]

    def _seconds(self, index: int, launch: ProgramLaunch, costs: Costs) -> float:
        rows = launch.stop - launch.start
        if launch.recode is not None:
            name, source, target = launch.recode
            return costs.recode_s(self.graph.buffers[name], rows, source, target)
        pass_ = self.graph.passes[launch.pass_index]
        seconds = costs.launch_s(pass_, rows, self.forms.get(index, ()))
        return seconds * self._num_ranges(index, pass_) if pass_.least_sums else seconds

    def _num_ranges(self, index: int, pass_: Pass) -> int:
        """The ranges of splits that a weight gradient takes in turn."""
        buffer = self.graph.buffers[pass_.writes[0].buffer]
        live = self.intervals[self.writes[index][0][0]]
        return num_ranges(buffer.rows, live.nbytes // buffer.row_nbytes)

    def launch_name(self, index: int) -> str:
        """The name of a launch, for errors."""
        launch = self.launches[index]
        rows = f"[{launch.start}, {launch.stop})"
        if launch.recode is not None:
            return f"recode {launch.recode.buffer} {rows}"
        return f"{self.graph.passes[launch.pass_index].name} {rows}"

    def offload_source(self, number: int) -> int:
        """The number of the interval whose offload left the bytes of prefetched `number`."""
        return offload_source(self.intervals, number)

    def left_nbytes(self, number: int) -> int:
        """The bytes that the offload of an interval leaves in its tier."""
        live = self.intervals[number]
        if live.leaves_as is None:
            return live.nbytes
        return in_form(self.graph.buffers[live.buffer], live.leaves_as).section_nbytes(live.section)

    def route_out(self, number: int) -> tuple[LanePair, ...]:
        """The links over which offloaded interval `number` leaves, in their order."""
        return ROUTES[self.intervals[number].tier]

    def route_back(self, number: int) -> tuple[LanePair, ...]:
        """The links over which prefetched interval `number` returns, in their order."""
        return ROUTES[self.intervals[self.offload_source(number)].tier][::-1]

    def copy_before(self, lane: Lane, number: int) -> tuple[Lane, int] | None:
        """The copy that left the bytes which the copy of an interval on a lane takes.

        Given as its lane and its interval; None where it takes them from the device.
        """
        out = [pair.out for pair in self.route_out(number)]
        if lane in out:
            at = out.index(lane)
            return (out[at - 1], number) if at else None
        back = self.route_back(number)
        at = [pair.back for pair in back].index(lane)
        return (back[at - 1].back, number) if at else (back[0].out, self.offload_source(number))


def offload_source(intervals: Sequence[LiveInterval], number: int) -> int:
    """The number of the interval whose offload left the bytes of prefetched `number`."""
    number = intervals[number].previous
    while not intervals[number].is_offloaded:
        number = intervals[number].previous
    return number


def unroll(graph: Graph, plan: Plan) -> Iterator[ProgramLaunch]:
    """The launches of a plan in order: by segment, then block, then slot, then run.

    A slot that runs ahead takes the rows of its lead with the first block, and so many fewer with
    the last ones.
    """
    slot_base = 0
    for index, segment in enumerate(plan.segments):
        domain = graph.passes[segment.slots[0].pass_index].domain
        block = segment.block or max(1, domain)
        for low in range(0, max(1, domain), block):
            high = min(domain, low + block)
            for number, slot in enumerate(segment.slots, slot_base):
                run = slot.run or block
                first, end = low + slot.lead if low else 0, min(domain, high + slot.lead)
                for start in range(first, max(end, 1), run):
                    stop = min(end, start + run)
                    yield ProgramLaunch(index, number, slot.pass_index, start, stop, slot.recompute)
        slot_base += len(segment.slots)


def end_of_last(launches: Sequence[ProgramLaunch], belongs: Callable[[ProgramLaunch], bool]) -> int:
    """The index after the last launch that belongs; 0 where there is none.

    Recomputes and recodes do not belong.
    """
    owned = ((i, each) for i, each in enumerate(launches) if not (each.recompute or each.recode))
    found = (i for i, each in owned if belongs(each))
    return 1 + max(found, default=-1)


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

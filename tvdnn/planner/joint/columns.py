"""Columns of the joint program: what each map may do between two uses, on a coarse clock.

A map is absent from one use to a point, ahead of which its makers run again. Or it is away, on the
host alone; or coded between forward and backward, and its code may be away. Makers run ahead of the
segment of a reader, or by block in it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import inf
from typing import Final, TypeAlias

import numpy as np

from ...graph import RAW, Buffer, Form, in_form, is_lossy, is_packed
from ..ir.costs import Costs
from ..ir.plan import HOST
from ..lowering.codes import Encoded, codable
from ..lowering.idle import IdleInterval
from ..lowering.rounded_codes import forms_beside
from ..recompute.skeleton import MapMaking, Skeleton
from ..recompute.supplies import Supply
from ..recompute.weave import Making
from .maker_runs import MakerRun, MakerRuns, Uses

MOST_STEPS = 200  # of a clock
FLOW_SHARE = 0.7  # of the steps, that go to launches by the idle bytes that they use

EXACT: Final[Mapping[str, Form]] = {}  # no map is rounded
ClassKey: TypeAlias = tuple[str, int, int, int, int, Form]


class Clock:
    """The launches of a program in few steps: how long each takes, and the most bytes it needs."""

    def __init__(self, skeleton: Skeleton, costs: Costs) -> None:
        launches = skeleton.program.launches
        flow = np.zeros(len(launches))
        for idle in skeleton.all_idle:
            flow[[idle.last, idle.next]] += idle.nbytes
        weight = FLOW_SHARE * flow / max(1.0, flow.sum()) + (1 - FLOW_SHARE) / len(launches)
        ends = np.floor(np.cumsum(weight) * MOST_STEPS)
        self.step_of = np.unique(np.concatenate(([0], ends[:-1])), return_inverse=True)[1]
        starts = np.flatnonzero(np.diff(self.step_of, prepend=-1))
        self.num = len(starts)
        self.seconds = np.add.reduceat(np.array(skeleton.program.launch_seconds(costs)), starts)
        self.required = np.maximum.reduceat(skeleton.required, starts).astype(np.float64)
        first: dict[int, int] = {}
        for index, launch in enumerate(launches):
            first.setdefault(launch.segment, int(self.step_of[index]))
        self.segment_step = [first[number] for number in range(len(first))]


@dataclass(frozen=True, slots=True)
class IdleClass:
    """Sections of a buffer in one form that are idle between the same two steps."""

    buffer: str
    last: int  # step
    next: int  # step
    final: int  # step that wrote their bytes last; -1: none
    high: int  # segment of the next use
    nbytes: int
    members: tuple[IdleInterval, ...]


@dataclass(frozen=True, slots=True)
class AwayColumn:
    """Sections of a class that are on the host alone until a step."""

    number: int  # of the class
    next: int  # step at which they are back
    nbytes: int
    coded: int | None = None  # number of the coded column whose codes these are; None: raw
    saved_s: float = 0.0  # of encoding, where a kernel encodes straight to the host instead


@dataclass(frozen=True, slots=True)
class CodedColumn:
    """A map that is encoded behind its last use in forward and decoded ahead of its next."""

    buffer: str
    form: Form
    classes: tuple[int, ...]
    nbytes: Mapping[int, int]  # by class, of the codes, with the bits beside rounded values
    seconds: Mapping[int, tuple[float, float]]  # by class, of encoding and of decoding


@dataclass(frozen=True, slots=True)
class AbsentColumn:
    """A map that is lost behind its use in segment `low` and made again by a run of its makers.

    It stays from there until a later segment.
    """

    buffer: str
    run: int  # number of the run column
    low: int  # segment
    point: int  # segment of the run
    making: MapMaking  # for the first reader of a later segment
    frees: tuple[tuple[int, int, int], ...]  # class, and the steps between which it is absent


@dataclass(frozen=True, slots=True)
class RunColumn:
    """The makers of a supply run again ahead of segment `point`."""

    supply: Supply
    point: int
    step: int
    seconds: float
    takes: tuple[tuple[str, int | None], ...]  # maps, each with the run that makes it again there


@dataclass(frozen=True, slots=True)
class BlockColumn:
    """Maps of a fusible region that are made again by block."""

    region: int
    number: int  # of its recomputes
    classes: tuple[int, ...]
    seconds: float


class Columns:
    """All columns of a skeleton. `lossy` are the codecs that may round maps, by map."""

    def __init__(self, skeleton: Skeleton, costs: Costs, lossy: Mapping[str, Form] = EXACT) -> None:
        self.skeleton, self.costs, self._lossy = skeleton, costs, lossy
        self.clock = Clock(skeleton, costs)
        self.classes = tuple(self._classes())
        self.of_buffer: Mapping[str, list[int]] = defaultdict(list)
        for number, each in enumerate(self.classes):
            if each.members[0].form == RAW:
                self.of_buffer[each.buffer].append(number)
        self._find_uses()
        runs = MakerRuns(skeleton, self.uses)
        self.runs = tuple(self._run(runs, run) for run in runs.found)
        absent = self._absent(runs)
        self.absent = tuple(sorted(absent, key=lambda each: self.runs[each.run].supply.passes))
        self.blocks = tuple(self._blocks())
        self.coded = tuple(self._coded())
        self.away = (*self._away(), *self._codes_away())

    def first_coded(self, number: int, share: float) -> int:
        """The first section of a share of a coded map, which is its last sections; -1: no section.

        The number of sections is the nearest one.
        """
        count = self.skeleton.program.graph.buffers[self.coded[number].buffer].num_sections
        sections = round(share * count)
        return count - sections if sections else -1

    def encoded(self, number: int, first: int) -> Encoded:
        """The map of a coded column, encoded from this section on."""
        return Encoded(self.coded[number].buffer, first, self.coded[number].form)

    def is_used_from(self, buffer: str, segment: int) -> bool:
        """Whether a segment from this one on uses the buffer."""
        return max(self.uses[buffer], default=-1) >= segment

    def _classes(self) -> Iterator[IdleClass]:
        step, launches = self.clock.step_of, self.skeleton.program.launches

        def key(idle: IdleInterval) -> ClassKey:
            final = -1 if idle.final_after < 0 else int(step[idle.final_after])
            high = launches[idle.next].segment
            return idle.buffer, int(step[idle.last]), int(step[idle.next]), final, high, idle.form

        ordered = sorted(self.skeleton.all_idle, key=lambda idle: (*key(idle), idle.section))
        for found, items in groupby(ordered, key=key):
            members = tuple(items)
            if found[2] - found[1] >= 2:
                yield IdleClass(*found[:-1], sum(each.nbytes for each in members), members)

    def _find_uses(self) -> None:
        """By buffer the segments that use it raw, each with the first pass that reads it."""
        program = self.skeleton.program
        uses: dict[str, dict[int, int | None]] = {name: {} for name in program.graph.buffers}
        for launch, reads, writes in zip(
            program.launches, program.reads, program.writes, strict=True
        ):
            for reader, runs in ((launch.pass_index, reads), (None, writes)):
                for live in (program.intervals[number] for run in runs for number in run):
                    if live.form == RAW:
                        found = uses[live.buffer]
                        if found.get(launch.segment) is None:
                            found[launch.segment] = reader
        self.uses: Uses = uses

    def _run(self, runs: MakerRuns, run: MakerRun) -> RunColumn:
        passes = (self.skeleton.program.graph.passes[index] for index in run.supply.all_passes)
        seconds = sum(self.costs.launch_s(pass_, pass_.domain) for pass_ in passes)
        step = self.clock.segment_step[run.point]
        return RunColumn(run.supply, run.point, step, seconds, tuple(runs.takes(run)))

    def _absent(self, runs: MakerRuns) -> Iterator[AbsentColumn]:
        for name in runs.buffers:
            for low, high in pairwise(sorted(self.uses[name])):
                reader = self.uses[name][high]
                if reader is None or runs.is_forward(high):
                    continue
                for number in runs.serving(name, reader, low, high):
                    point = self.runs[number].point
                    by_block = point == high and runs.join(runs.found[number])
                    frees = tuple(self._frees(name, point, high, by_block=by_block))
                    if frees:
                        since = Making.AFRESH if point == high else runs.first_pass(point)
                        making = MapMaking(name, reader, since)
                        yield AbsentColumn(name, number, low, point, making, frees)

    def _frees(
        self, name: str, point: int, high: int, *, by_block: bool
    ) -> Iterator[tuple[int, int, int]]:
        step = self.clock.segment_step[point]
        for number in self.of_buffer[name]:
            each = self.classes[number]
            end = each.next if by_block else step
            if each.high == high and each.last + 1 < end:
                yield number, each.last, end

    def _blocks(self) -> Iterator[BlockColumn]:
        skeleton = self.skeleton
        forward_backward = set(skeleton.forward_backward_idle)
        pairs = zip(skeleton.candidates.regions, skeleton.choice.blocks, strict=True)
        for number, (region, block) in enumerate(pairs):
            for index, each in enumerate(region.recomputes if block else ()):
                classes = tuple(
                    found
                    for name in sorted(each.buffers)
                    for found in self.of_buffer[name]
                    if self.classes[found].members[0] in forward_backward
                )
                if classes:
                    yield BlockColumn(number, index, classes, each.seconds)

    def _away(self) -> Iterator[AwayColumn]:
        """Each class until its next use, or until a maker takes it."""
        asked: dict[str, set[int]] = defaultdict(set)
        for run in self.runs:
            for name, _ in run.takes:
                asked[name].add(run.step)
        for number, each in enumerate(self.classes):
            yield AwayColumn(number, each.next, each.nbytes)
            for step in sorted(asked.get(each.buffer, ())):
                if each.last + 1 < step < each.next:
                    yield AwayColumn(number, step, each.nbytes)

    def _coded(self) -> Iterator[CodedColumn]:
        """The maps of which a byte is freed in less time by a code than by making it again."""
        makers_s: dict[str, float] = {}
        for absent in self.absent:
            seconds_of_run = self.runs[absent.run].seconds
            makers_s[absent.buffer] = min(seconds_of_run, makers_s.get(absent.buffer, inf))
        graph, trips = self.skeleton.program.graph, set(self.skeleton.forward_backward_idle)
        exact = ((name, form) for name, form in codable(graph) if name not in self._lossy)
        for name, form in (*exact, *self._lossy.items()):
            classes = [n for n in self.of_buffer[name] if self.classes[n].members[0] in trips]
            buffer = graph.buffers[name]
            forms = forms_beside(graph, name, form) if is_lossy(form) else (form,)
            nbytes = {
                number: sum(
                    in_form(buffer, each).section_nbytes(idle.section)
                    for each in forms
                    for idle in self.classes[number].members
                )
                for number in classes
            }
            seconds = {n: self._recode_s(self.classes[n], buffer, forms) for n in classes}
            raw = sum(self.classes[number].nbytes for number in classes)
            recode_s, freed = sum(map(sum, seconds.values())), raw - sum(nbytes.values())
            if classes and recode_s * raw < makers_s.get(name, inf) * freed:
                yield CodedColumn(name, form, tuple(classes), nbytes, seconds)

    def _recode_s(
        self, each: IdleClass, buffer: Buffer, forms: Sequence[Form]
    ) -> tuple[float, float]:
        """Seconds of encoding in all forms, and of decoding the first. Others are read as codes."""
        bounds = [buffer.bounds(idle.section) for idle in each.members]
        encoding, decoding = (
            sum(
                self.costs.recode_s(buffer, stop - start, *way)
                for start, stop in bounds
                for way in ways
            )
            for ways in ([(RAW, form) for form in forms], [(forms[0], RAW)])
        )
        return encoding, decoding

    def _codes_away(self) -> Iterator[AwayColumn]:
        """Each code until its next use, by the cheaper of an engine and a kernel."""
        link = self.costs.links[HOST]
        for number, each in enumerate(self.coded):
            for which in each.classes:
                nbytes, (encoding_s, _) = each.nbytes[which], each.seconds[which]
                packed = is_packed(each.form)
                saved_s = 0.0 if packed else max(0.0, encoding_s - link.zero_copy_s(nbytes))
                yield AwayColumn(which, self.classes[which].next, nbytes, number, saved_s)

"""Columns of the joint program: what each map may do between two uses, on a coarse clock.

A map is absent from one use to a point, ahead of which its makers run again. Or it is away, on the
host alone. Makers run ahead of the segment of a reader, or by block in it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from typing import TypeAlias

import numpy as np

from ...graph import RAW, Direction, Form
from ..ir.costs import Costs
from ..lowering.idle import IdleInterval
from ..recompute.skeleton import Skeleton
from .remakes import Remake, Remakes
from .with_makers import joined

MOST_STEPS = 200  # of a clock
FLOW_SHARE = 0.7  # of the steps, that go to launches by the idle bytes that they use
MOST_RUNS = 1500  # of makers: ingredients of ingredients are made as far as they are no more
MOST_DEPTH = 6  # of ingredients of ingredients

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


@dataclass(frozen=True, slots=True)
class AbsentColumn:
    """A map that is lost behind its use in segment `low` and made again ahead of `point`.

    It stays from there until its next use.
    """

    buffer: str
    remake: Remake
    low: int  # segment
    point: int  # segment
    frees: tuple[tuple[int, int, int], ...]  # class, and the steps between which it is absent


@dataclass(frozen=True, slots=True)
class RunColumn:
    """The makers of a remake run again ahead of segment `point`."""

    remake: Remake
    point: int
    step: int


@dataclass(frozen=True, slots=True)
class BlockColumn:
    """Maps of a fusible region that are made again by block."""

    region: int
    number: int  # of its recomputes
    classes: tuple[int, ...]
    seconds: float


class Columns:
    """All columns of a skeleton."""

    def __init__(self, skeleton: Skeleton, remakes: Remakes, costs: Costs) -> None:
        self.skeleton, self.remakes, self.costs = skeleton, remakes, costs
        self.clock = Clock(skeleton, costs)
        self.classes = tuple(self._classes())
        self.of_buffer: Mapping[str, list[int]] = defaultdict(list)
        for number, each in enumerate(self.classes):
            if each.members[0].form == RAW:
                self.of_buffer[each.buffer].append(number)
        self._find_uses()
        points = self._points()
        self.runs = tuple(run for remake in points for run in self._runs(remake, points[remake]))
        self.absent = tuple(
            column for remake in self._usable for column in self._absent(remake, points[remake])
        )
        self.blocks = tuple(self._blocks())
        self.away = tuple(self._away())

    def is_used_from(self, buffer: str, segment: int) -> bool:
        """Whether a segment from this one on uses the buffer."""
        return self.uses[buffer][-1:] >= [segment]

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
        """By buffer the segments that use it raw, and by segment its first pass and direction."""
        program = self.skeleton.program
        graph, passes = program.graph, program.graph.passes
        self.first_pass: list[int] = []
        self._is_forward: list[bool] = []
        for segment in program.plan.segments:
            indices = [slot.pass_index for slot in segment.slots]
            self.first_pass.append(min(indices))
            forward = (passes[index].direction is Direction.FORWARD for index in indices)
            self._is_forward.append(all(forward))
        uses: dict[str, set[int]] = {name: set() for name in graph.buffers}
        for launch, *touched in zip(program.launches, program.reads, program.writes, strict=True):
            for number in (number for runs in touched for run in runs for number in run):
                if program.intervals[number].form == RAW:
                    uses[program.intervals[number].buffer].add(launch.segment)
        self.uses: Mapping[str, list[int]] = {name: sorted(found) for name, found in uses.items()}

    @cached_property
    def _usable(self) -> list[Remake]:
        """The remakes that touch no inner map of a region that goes by block."""
        skeleton = self.skeleton
        pairs = zip(skeleton.candidates.regions, skeleton.choice.blocks, strict=True)
        inner = frozenset(name for region, block in pairs if block for name in region.inner)
        return [
            each
            for each in self.remakes.all
            if inner.isdisjoint(each.buffers) and inner.isdisjoint(name for name, _ in each.takes)
        ]

    def _points(self) -> Mapping[Remake, list[int]]:
        """Segments ahead of which each remake may be asked for: its own uses, and its takers'."""
        usable, found = set(self._usable), dict[Remake, set[int]]()
        for each in self._usable:
            uses = (number for name in each.buffers for number in self.uses[name])
            found[each] = {number for number in uses if not self._is_forward[number]}
        for _ in range(MOST_DEPTH):
            more = {each: set(points) for each, points in found.items()}
            for each, points in found.items():
                asked = {point for point in points if self.first_pass[point] <= each.until}
                for name, writers in each.takes:
                    other = self.remakes.making(name, writers)
                    if self.remakes.of.get(name) in usable and other is not None:
                        more.setdefault(other, set()).update(asked)
            if sum(map(len, more.values())) > MOST_RUNS:
                break
            found = more
        return {each: sorted(points) for each, points in found.items()}

    def _runs(self, remake: Remake, points: list[int]) -> Iterator[RunColumn]:
        for point in points:
            if self.first_pass[point] <= remake.until:
                yield RunColumn(remake, point, self.clock.segment_step[point])

    def _absent(self, remake: Remake, points: list[int]) -> Iterator[AbsentColumn]:
        allowed = [point for point in points if self.first_pass[point] <= remake.until]
        for name in sorted(remake.buffers):
            for low, high in pairwise(self.uses[name]):
                if self._is_forward[high]:
                    continue
                for point in (each for each in allowed if low < each <= high):
                    by_block = point == high and self._joins(remake, point)
                    frees = tuple(self._frees(name, point, high, by_block=by_block))
                    if frees:
                        yield AbsentColumn(name, remake, low, point, frees)

    def _frees(
        self, name: str, point: int, high: int, *, by_block: bool
    ) -> Iterator[tuple[int, int, int]]:
        step = self.clock.segment_step[point]
        for number in self.of_buffer[name]:
            each = self.classes[number]
            end = each.next if by_block else step
            if each.high == high and each.last + 1 < end:
                yield number, each.last, end

    def _joins(self, remake: Remake, point: int) -> bool:
        """Whether all makers go by block with the segment."""
        program = self.skeleton.program
        found = joined(program.graph, program.plan.segments[point], remake.makers)
        return len(found) == len(remake.makers)

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
            for name, _ in run.remake.takes:
                asked[name].add(run.step)
        for number, each in enumerate(self.classes):
            yield AwayColumn(number, each.next)
            for step in sorted(asked.get(each.buffer, ())):
                if each.last + 1 < step < each.next:
                    yield AwayColumn(number, step)

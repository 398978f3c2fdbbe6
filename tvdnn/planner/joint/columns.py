"""Columns of the joint program: what each map may do between two uses, on a coarse clock."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise

import numpy as np

from ...graph import Direction
from ..ir.costs import Costs
from ..lowering.idle import IdleInterval
from ..recompute.skeleton import Skeleton
from .remakes import Remake, Remakes
from .weave import joined

MOST_STEPS = 260
DEPTH = 2  # of ingredients that are made for what is made


class Clock:
    """The launches of a program in few steps: how long each takes, and the most bytes it needs."""

    def __init__(self, skeleton: Skeleton, costs: Costs, most_steps: int = MOST_STEPS) -> None:
        program = skeleton.program
        num = len(program.launches)
        size = -(-num // most_steps)
        self.step_of = np.arange(num) // size
        starts = np.arange(0, num, size)
        self.num = len(starts)
        self.seconds = np.add.reduceat(np.array(program.launch_seconds(costs)), starts)
        self.required = np.maximum.reduceat(skeleton.required, starts).astype(np.float64)
        slots: list[int] = []
        self.segment_start: list[int] = []  # by segment, its first launch
        for index, launch in enumerate(program.launches):
            if launch.segment == len(self.segment_start):
                self.segment_start.append(index)
        self.segment_step = [int(self.step_of[index]) for index in self.segment_start]


@dataclass(frozen=True, slots=True)
class IdleClass:
    """Sections of a buffer that are idle between the same two steps."""

    buffer: str
    last: int  # step
    next: int  # step
    final: int  # step that wrote their bytes, -1: none
    high: int  # segment of the next use
    nbytes: int
    members: tuple[IdleInterval, ...]


@dataclass(frozen=True, slots=True)
class AwayColumn:
    number: int  # of its class
    next: int  # step at which the sections are back


@dataclass(frozen=True, slots=True)
class AbsentColumn:
    """A map that is lost behind its use in segment `low` and made again ahead of `point`.

    It stays from there until its next use.
    """

    buffer: str
    remake: Remake
    low: int  # segment
    point: int  # segment
    high: int  # segment of its next use
    frees: tuple[tuple[int, int, int], ...]  # bytes, from a step, to a step, exclusive both


@dataclass(frozen=True, slots=True)
class RunColumn:
    """The makers of a remake run again ahead of `point`."""

    remake: Remake
    point: int  # segment
    step: int
    by_block: bool


@dataclass(frozen=True, slots=True)
class BlockColumn:
    """Maps of a region that are made again by block."""

    region: int
    number: int  # of its recomputes
    classes: tuple[int, ...]
    seconds: float


class Columns:
    """All columns of a skeleton, and how they exclude each other."""

    def __init__(
        self, skeleton: Skeleton, remakes: Remakes, costs: Costs, clock: Clock | None = None
    ) -> None:
        self.skeleton, self.remakes, self.costs = skeleton, remakes, costs
        self.clock = clock or Clock(skeleton, costs)
        self.classes = list(self._classes())
        self.of_buffer: dict[str, list[int]] = defaultdict(list)
        for number, each in enumerate(self.classes):
            self.of_buffer[each.buffer].append(number)
        self._find_uses()
        inner = {n for region in skeleton.candidates.regions for n in region.inner}
        self.usable = [
            each
            for each in remakes.all
            if not each.buffers & inner and not any(name in inner for name, _ in each.takes)
        ]
        self.points = self._points()
        self.runs = [column for each in self.points for column in self._runs(each)]
        self.absent = [column for each in self.usable for column in self._absent(each)]
        self.blocks = list(self._blocks())
        self.away = list(self._away())

    def _classes(self) -> Iterator[IdleClass]:
        step, launches = self.clock.step_of, self.skeleton.program.launches

        def key(idle: IdleInterval) -> tuple[str, int, int, int, int]:
            final = -1 if idle.final_after < 0 else int(step[idle.final_after])
            high = launches[idle.next].segment
            return idle.buffer, int(step[idle.last]), int(step[idle.next]), final, high

        for (buffer, last, next_, final, high), items in groupby(
            sorted(self.skeleton.all_idle, key=lambda i: (*key(i), i.section)), key=key
        ):
            members = tuple(items)
            if next_ - last >= 2:
                nbytes = sum(each.nbytes for each in members)
                yield IdleClass(buffer, last, next_, final, high, nbytes, members)

    def _find_uses(self) -> None:
        """By buffer, the segments that use it, and of each segment its direction."""
        graph, plan = self.skeleton.program.graph, self.skeleton.program.plan
        self.uses: dict[str, list[int]] = defaultdict(list)
        self.reads: list[frozenset[str]] = []
        self.first_pass: list[int] = []
        self.is_forward: list[bool] = []
        for number, segment in enumerate(plan.segments):
            passes = [graph.passes[slot.pass_index] for slot in segment.slots]
            for name in {name for each in passes for name in each.used_buffers}:
                self.uses[name].append(number)
            self.reads.append(frozenset(name for each in passes for name in each.read_buffers))
            self.first_pass.append(min(slot.pass_index for slot in segment.slots))
            self.is_forward.append(all(p.direction is Direction.FORWARD for p in passes))

    def own_uses(self, remake: Remake) -> list[int]:
        return sorted({number for name in remake.buffers for number in self.uses[name]})

    def _points(self) -> dict[Remake, list[int]]:
        """Segments ahead of which each remake may be asked for, its own uses among them."""
        usable = set(self.usable)
        found: dict[Remake, set[int]] = {
            each: {n for n in self.own_uses(each) if not self.is_forward[n]}
            for each in self.usable
        }
        for _ in range(DEPTH):
            for each, points in [(each, set(points)) for each, points in found.items()]:
                for name, writers in each.takes:
                    whole, other = self.remakes.of.get(name), self.remakes.making(name, writers)
                    if whole in usable and other is not None:
                        asked = {p for p in points if self.first_pass[p] <= each.until}
                        found.setdefault(other, set()).update(asked)
        return {each: sorted(points) for each, points in found.items()}

    def _runs(self, remake: Remake) -> Iterator[RunColumn]:
        for point in self.points[remake]:
            if self.first_pass[point] <= remake.until:
                step, by_block = self.clock.segment_step[point], self._joins(remake, point)
                yield RunColumn(remake, point, step, by_block)

    def _absent(self, remake: Remake) -> Iterator[AbsentColumn]:
        for name in sorted(remake.buffers):
            uses = self.uses[name]
            for low, high in pairwise(uses):
                if self.is_forward[high]:
                    continue
                for point in self.points[remake]:
                    if low < point <= high and self.first_pass[point] <= remake.until:
                        by_block = point == high and self._joins(remake, point)
                        frees = tuple(self._frees(name, point, high, by_block=by_block))
                        if frees:
                            yield AbsentColumn(name, remake, low, point, high, frees)

    def _frees(
        self, name: str, point: int, high: int, *, by_block: bool
    ) -> Iterator[tuple[int, int, int]]:
        step = self.clock.segment_step[point]
        for number in self.of_buffer[name]:
            each = self.classes[number]
            end = each.next if by_block else step
            if each.high == high and each.last + 1 < end:
                yield each.nbytes, each.last, end

    def _joins(self, remake: Remake, point: int) -> bool:
        plan = self.skeleton.program.plan
        found = joined(self.skeleton.program.graph, plan.segments[point], remake.makers)
        return len(found) == len(remake.makers)

    def _blocks(self) -> Iterator[BlockColumn]:
        skeleton = self.skeleton
        boundary = next(
            (n for n, forward in enumerate(self.is_forward) if not forward), len(self.is_forward)
        )
        half = self.clock.segment_step[boundary] if boundary < len(self.is_forward) else 0
        for number, region in enumerate(skeleton.candidates.regions):
            for index, each in enumerate(region.recomputes):
                classes = tuple(
                    n
                    for name in each.buffers
                    for n in self.of_buffer[name]
                    if self.classes[n].last <= half <= self.classes[n].next
                )
                if classes:
                    yield BlockColumn(number, index, classes, each.seconds)

    def _away(self) -> Iterator[AwayColumn]:
        asked = defaultdict(set)
        for column in self.runs:
            for name, _ in column.remake.takes:
                asked[name].add(column.step)
        for number, each in enumerate(self.classes):
            yield AwayColumn(number, each.next)
            for step in sorted(asked[each.buffer]):
                if each.last + 1 < step < each.next:
                    yield AwayColumn(number, step)

"""Columns of the joint program: what each map may do between two uses, on a coarse clock."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from math import lcm

import numpy as np

from ...graph import Direction, Graph
from ..ir.costs import Costs
from ..lowering.idle import IdleInterval
from ..recompute.skeleton import Skeleton
from .remakes import Remake, Remakes
from .weave import joined

MOST_STEPS = 200
FLOW_SHARE = 0.7  # of the steps, that go to launches by the idle bytes that they use
MOST_RUNS = 1500  # of makers: ingredients of ingredients are made as far as they are no more
MOST_DEPTH = 6


class Clock:
    """The launches of a program in few steps: how long each takes, and the most bytes it needs."""

    def __init__(self, skeleton: Skeleton, costs: Costs, most_steps: int = MOST_STEPS) -> None:
        program = skeleton.program
        num = len(program.launches)
        flow = np.zeros(num)
        for idle in skeleton.all_idle:
            flow[[idle.last, idle.next]] += idle.nbytes
        weight = FLOW_SHARE * flow / max(1.0, flow.sum()) + (1 - FLOW_SHARE) / num
        ends = np.floor(np.cumsum(weight) * most_steps * (1 - 1e-9))
        self.step_of = np.unique(np.concatenate(([0], ends[:-1])), return_inverse=True)[1]
        starts = np.flatnonzero(np.diff(self.step_of, prepend=-1))
        self.num = len(starts)
        self.seconds = np.add.reduceat(np.array(program.launch_seconds(costs)), starts)
        self.required = np.maximum.reduceat(skeleton.required, starts).astype(np.float64)
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
    rows: tuple[int, int]  # the stripe that they lie in
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
    rows: tuple[int, int]
    frees: tuple[tuple[int, int, int], ...]  # bytes, from a step, to a step, exclusive both


@dataclass(frozen=True, slots=True)
class RunColumn:
    """The makers of a remake run again ahead of `point`."""

    remake: Remake
    point: int  # segment
    step: int
    rows: tuple[int, int]
    seconds: float


class Stripes:
    """The rows of the batch in stripes, of which each may be made again or not."""

    def __init__(self, graph: Graph, most: int) -> None:
        self._graph, self._most = graph, most
        self._known: dict[Remake, tuple[tuple[int, int], ...]] = {}

    def of(self, remake: Remake) -> tuple[tuple[int, int], ...]:
        if remake not in self._known:
            self._known[remake] = tuple(self._of(remake))
        return self._known[remake]

    def _of(self, remake: Remake) -> Iterator[tuple[int, int]]:
        passes = [self._graph.passes[i] for i in remake.makers]
        buffers = [self._graph.buffers[n] for n in remake.buffers]
        domain, count = passes[0].domain, self._most
        whole = any(use.whole for p in passes for use in p.writes)
        if whole or any(p.domain != domain or p.reads_neighbours for p in passes):
            count = 1
        if any(b.rows != domain for b in buffers):
            count = 1
        unit = lcm(*(p.unit for p in passes), *(b.section for b in buffers))
        while count > 1 and (domain % count or domain // count % unit):
            count //= 2
        size = domain // count
        for number in range(count):
            yield number * size, (number + 1) * size


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
        self,
        skeleton: Skeleton,
        remakes: Remakes,
        costs: Costs,
        clock: Clock | None = None,
        stripes: int = 1,
    ) -> None:
        self.skeleton, self.remakes, self.costs = skeleton, remakes, costs
        self.clock = clock or Clock(skeleton, costs)
        self._stripes = Stripes(skeleton.program.graph, stripes)
        self.classes = list(self._classes())
        self.of_buffer: dict[str, list[int]] = defaultdict(list)
        for number, each in enumerate(self.classes):
            self.of_buffer[each.buffer].append(number)
        self._find_uses()
        regions = zip(skeleton.candidates.regions, skeleton.choice.blocks, strict=True)
        inner = {name for region, block in regions if block for name in region.inner}
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

        def key(idle: IdleInterval) -> tuple[str, int, int, int, int, tuple[int, int]]:
            final = -1 if idle.final_after < 0 else int(step[idle.final_after])
            high = launches[idle.next].segment
            rows = self._stripe_of(idle.buffer, idle.section)
            return idle.buffer, int(step[idle.last]), int(step[idle.next]), final, high, rows

        for (buffer, last, next_, final, high, rows), items in groupby(
            sorted(self.skeleton.all_idle, key=lambda i: (*key(i), i.section)), key=key
        ):
            members = tuple(items)
            if next_ - last >= 2:
                nbytes = sum(each.nbytes for each in members)
                yield IdleClass(buffer, last, next_, final, high, rows, nbytes, members)

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
        for _ in range(MOST_DEPTH):
            more = {each: set(points) for each, points in found.items()}
            for each, points in found.items():
                for name, writers in each.takes:
                    whole, other = self.remakes.of.get(name), self.remakes.making(name, writers)
                    if whole in usable and other is not None:
                        asked = {p for p in points if self.first_pass[p] <= each.until}
                        more.setdefault(other, set()).update(asked)
            if sum(map(len, more.values())) > MOST_RUNS:
                break
            found = more
        return {each: sorted(points) for each, points in found.items()}

    def _stripe_of(self, buffer: str, section: int) -> tuple[int, int]:
        """The stripe of a section, as its buffer is made again."""
        remake, of = self.remakes.of.get(buffer), self.skeleton.program.graph.buffers[buffer]
        if remake is None:
            return 0, of.rows
        row = of.bounds(section)[0]
        return next((r for r in self._stripes.of(remake) if r[0] <= row < r[1]), (0, of.rows))

    def _runs(self, remake: Remake) -> Iterator[RunColumn]:
        graph = self.skeleton.program.graph
        passes = [graph.passes[i] for i in remake.makers]
        for rows in self._stripes.of(remake):
            share = (rows[1] - rows[0]) / passes[0].domain
            seconds = sum(
                self.costs.launch_s(p, max(1, round(share * p.domain))) for p in passes
            )
            for point in self.points[remake]:
                if self.first_pass[point] <= remake.until:
                    step = self.clock.segment_step[point]
                    yield RunColumn(remake, point, step, rows, seconds)

    def _absent(self, remake: Remake) -> Iterator[AbsentColumn]:
        for name in sorted(remake.buffers):
            uses = self.uses[name]
            for low, high in pairwise(uses):
                if self.is_forward[high]:
                    continue
                for point in self.points[remake]:
                    if low < point <= high and self.first_pass[point] <= remake.until:
                        by_block = point == high and self._joins(remake, point)
                        for rows in self._stripes.of(remake):
                            frees = tuple(self._frees(name, point, high, rows, by_block=by_block))
                            if frees:
                                yield AbsentColumn(name, remake, low, point, high, rows, frees)

    def _frees(
        self, name: str, point: int, high: int, rows: tuple[int, int], *, by_block: bool
    ) -> Iterator[tuple[int, int, int]]:
        step = self.clock.segment_step[point]
        for number in self.of_buffer[name]:
            each = self.classes[number]
            end = each.next if by_block else step
            if each.high == high and each.rows == rows and each.last + 1 < end:
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
            if skeleton.choice.blocks[number] is None:
                continue
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

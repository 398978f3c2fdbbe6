"""Skeletons: orders of execution before any offload, and the plans that offload from them.

A choice of what to recompute gives the order. Fusible regions whose maps are recomputed go
section-major in both directions. These maps exist for the samples of one block at a time. Layers
that normalize over the batch go by block in barrier stages. Maps outside of both are recomputed for
the full batch. What else must leave the device is offloaded, outermost maps first: they are idle
for longest.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import lcm
from operator import attrgetter
from typing import Any

import numpy as np

from ...graph import RUN_CHUNKS, Graph, section_rows
from ...placement.cuda_blocks import usable_nbytes
from ...units import format_bytes
from ..ir.costs import Costs
from ..ir.plan import Plan, Segment, Slot
from ..lowering.build_program import build_program
from ..lowering.codes import codes_left
from ..lowering.idle import IdleInterval, bridges_of, forward_backward_idle, intra_pass_idle
from ..lowering.launch_limits import Array, MemoryLimit, Result, with_tightened_limits
from ..lowering.list_scheduler import required_nbytes
from ..lowering.program import Program
from ..lowering.segments import Variant, segments
from .barriers import Phase
from .candidates import Candidates, FullBatchRecompute, with_recomputed
from .regions import PassRegion, RecomputeSet, recompute_passes

LONG_RUN_CHUNKS = 16  # where little moves, longer blocks save launches
CHUNKS = {Variant.PERFORMANCE: RUN_CHUNKS, Variant.KEEP: LONG_RUN_CHUNKS}
NOTHING = RecomputeSet((), ())
NBYTES = attrgetter("nbytes")


@dataclass(frozen=True, slots=True)
class RecomputeChoice:
    """What a search decides. Segments and programs follow from it.

    Regions and full-batch recomputes that share a pass with a barrier stage are left out.
    """

    rest: Variant  # blocks of layers in no region, and of barrier stages
    blocks: tuple[Variant | None, ...]  # by region; None: its ops go layer by layer
    recomputed: tuple[frozenset[str], ...]  # by region, the maps that backward recomputes
    full_batch: frozenset[int] = frozenset()  # numbers of the full-batch recomputes
    memory_centric: bool = False  # what they read is recomputed for every reader (SuperNeurons)
    stages: frozenset[int] = frozenset()  # numbers of the barrier stages
    through: bool = True  # forward of a region without recomputed maps goes section-major too
    coded: bool = True  # passes leave all codes that they can


class _FreeIntervals:
    """The idle intervals that are not taken yet, those of the outermost maps first."""

    def __init__(self, idle: Iterable[IdleInterval]) -> None:
        self._intervals = tuple(idle)
        maps: dict[str, int] = {}
        rows = [
            (each.last, each.next, maps.setdefault(each.buffer, len(maps)))
            for each in self._intervals
        ]
        self._last, self._back, self._map = np.array(rows, np.int64).reshape(-1, 3).T.copy()

    def take(self, launch: int, excess: int) -> list[IdleInterval]:
        """Sections of the outermost map that is idle at `launch`, the last first, up to `excess`.

        An interval that is taken ends before it began. It is idle at no launch then.
        """
        idle = np.flatnonzero((self._last < launch) & (launch < self._back))
        chosen, nbytes = list[IdleInterval](), 0
        for index in reversed(idle[self._map[idle] == self._map[idle[:1]]].tolist()):
            if nbytes < excess:
                chosen.append(self._intervals[index])
                nbytes += chosen[-1].nbytes
                self._back[index] = -1
        return chosen


@dataclass(frozen=True, eq=False)
class Skeleton:
    """An order of execution before any offload, and when its sections are idle."""

    candidates: Candidates
    choice: RecomputeChoice
    program: Program  # of a plan that offloads nothing
    made: Mapping[str, str] = field(default_factory=dict)  # by map, why it is made again

    @cached_property
    def required(self) -> Array:
        """The bytes that each launch requires."""
        return required_nbytes(self.program)

    @cached_property
    def least(self) -> Array:
        """The bytes that each launch requires while all idle sections are offloaded."""
        return self.required - self.freed(self.all_idle)

    def freed(
        self, offloaded: Iterable[IdleInterval], size: Callable[[IdleInterval], int] = NBYTES
    ) -> Array:
        """The bytes by launch that sections free while they are offloaded."""
        change = np.zeros(len(self.required) + 1, np.int64)
        for idle in offloaded:
            change[idle.last + 1] += size(idle)
            change[idle.next] -= size(idle)
        return np.cumsum(change)[:-1]

    @cached_property
    def forward_backward_idle(self) -> list[IdleInterval]:
        return forward_backward_idle(self.program)

    @cached_property
    def intra_pass_idle(self) -> list[IdleInterval]:
        return intra_pass_idle(self.program)

    @cached_property
    def all_idle(self) -> list[IdleInterval]:
        return [*self.forward_backward_idle, *self.intra_pass_idle]

    def with_tightened_limits(
        self, attempt: Callable[[Array], Result], capacity: int, **first: Any
    ) -> Iterator[Result]:
        """The results of `attempt` for limits by launch under which all groups are placed.

        `first` sets how far limits are tightened first.
        """
        limit, num_intervals = usable_nbytes(capacity), len(self.program.intervals)
        return with_tightened_limits(attempt, limit, self.least, num_intervals, **first)

    def compute_s(self, costs: Costs) -> float:
        """The seconds of all launches."""
        return sum(self.program.launch_seconds(costs))

    def plan_within(self, limits: MemoryLimit) -> Plan | None:
        """The plan whose launches find their bytes within limits; None where they cannot."""
        offloaded = self.outermost_idle(limits)
        return None if offloaded is None else self.offloading(offloaded)

    def offloading(self, offloaded: Sequence[IdleInterval], policy: str = "auto") -> Plan:
        """The plan of `policy` that offloads sections in these idle intervals."""
        plan = self.program.plan
        bridges, reasons = tuple(bridges_of(offloaded, plan.bridges)), self._reasons(offloaded)
        return replace(plan, policy=policy, bridges=bridges, reasons=reasons)

    def outermost_idle(self, limits: MemoryLimit) -> list[IdleInterval] | None:
        """Sections to offload so that every launch finds its bytes; None if none suffice."""
        excess, offloaded = self.required - limits, list[IdleInterval]()
        if int(excess.max(initial=0)) <= 0:
            return offloaded
        trips, others = _FreeIntervals(self.forward_backward_idle), None
        fullest = int(excess.argmax())
        while excess[fullest] > 0:
            chosen = trips.take(fullest, int(excess[fullest]))
            if not chosen:
                others = others or _FreeIntervals(self.intra_pass_idle)
                chosen = others.take(fullest, int(excess[fullest]))
            if not chosen:
                return None
            for idle in chosen:
                excess[idle.last + 1 : idle.next] -= idle.nbytes
            offloaded += chosen
            fullest = int(excess.argmax())
        return offloaded

    def _reasons(self, offloaded: Sequence[IdleInterval]) -> Mapping[str, str]:
        """Why maps are offloaded or recomputed, in words."""
        candidates, choice, graph = self.candidates, self.choice, self.program.graph
        reasons = dict(self.made)
        passes_of_stages = candidates.passes_of_stages(choice.stages)
        slots = self.program.plan.slots
        names = [graph.passes[s.pass_index].name + " again" * s.recompute for s in slots]
        reasons |= {
            idle.buffer: f"idle from {names[idle.offload_after]} to {names[idle.needed_by]}"
            for idle in offloaded
        }
        recomputes = [
            recompute
            for region, recomputed in zip(candidates.regions, choice.recomputed, strict=True)
            if passes_of_stages.isdisjoint(region.passes)
            for recompute in region.recomputes
            if recompute.buffers <= recomputed
        ]
        recomputes += [whole.recompute for whole in _full_batch(candidates, choice)]
        recomputes += [candidates.stages[number].recompute for number in sorted(choice.stages)]
        for recompute in recomputes:
            price = f"{1e3 * recompute.seconds:.2f} ms for {format_bytes(recompute.nbytes)}"
            reasons |= dict.fromkeys(sorted(recompute.buffers), price)
        return reasons


def skeleton_of(graph: Graph, candidates: Candidates, choice: RecomputeChoice) -> Skeleton:
    """The order of execution of a choice."""
    parts = tuple(
        with_recomputed(
            graph,
            _segments(graph, candidates, choice),
            _full_batch(candidates, choice),
            choice.rest,
            memory_centric=choice.memory_centric,
        )
    )
    codes = tuple(codes_left(graph, parts)) if choice.coded else ()
    return Skeleton(candidates, choice, build_program(graph, Plan("auto", parts, codes)))


def leanest_plans(graph: Graph, candidates: Candidates) -> Iterator[Plan]:
    """Plans of the smallest blocks that offload all idle sections, recomputing all maps or none."""
    regions = candidates.regions
    blocks = (Variant.MEMORY,) * len(regions)
    none = RecomputeChoice(Variant.MEMORY, blocks, (frozenset[str](),) * len(regions))
    names = ((name for each in region.recomputes for name in each.buffers) for region in regions)
    full_batch = frozenset(range(len(candidates.full_batch)))
    all_ = replace(none, recomputed=tuple(map(frozenset, names)), full_batch=full_batch)
    codes = (True, False) if list(codes_left(graph, segments(graph, {}, Variant.KEEP))) else (True,)
    for choice, coded in product((all_, none), codes):
        skeleton = skeleton_of(graph, candidates, replace(choice, coded=coded))
        yield skeleton.offloading(skeleton.all_idle)


def _full_batch(candidates: Candidates, choice: RecomputeChoice) -> list[FullBatchRecompute]:
    """The chosen full-batch recomputes but those that share a pass with a barrier stage."""
    passes_of_stages = candidates.passes_of_stages(choice.stages)
    full_batch = [candidates.full_batch[number] for number in sorted(choice.full_batch)]
    return [whole for whole in full_batch if passes_of_stages.isdisjoint(whole.makers)]


def _segments(graph: Graph, candidates: Candidates, choice: RecomputeChoice) -> Iterator[Segment]:
    """The passes in program order, those of regions and of barrier stages by block."""
    starts: dict[int, list[Segment]] = {}
    taken = passes_of_stages = candidates.passes_of_stages(choice.stages)
    for each in (candidates.stages[number] for number in choice.stages):
        for phase in (each.forward, each.backward):
            starts[phase.passes[0]] = list(_stage_segments(graph, phase, choice.rest))
    chosen = zip(candidates.regions, choice.blocks, choice.recomputed, strict=True)
    for region, block, recomputed in chosen:
        if block is None or not passes_of_stages.isdisjoint(region.passes):
            continue
        made = recompute_passes(graph, region, recomputed) if recomputed else NOTHING
        halves = ((region.forward, NOTHING), (region.backward, made))
        for part, first in halves if recomputed or choice.through else halves[1:]:
            starts[part.passes[0]] = _region_segments(graph, part, first, block)
            taken = taken.union(part.passes)
    for segment in segments(graph, {}, choice.rest):
        left: list[Slot] = []
        for slot in segment.slots:
            if slot.pass_index in starts:
                yield from _others(segment, left)
                yield from starts[slot.pass_index]
                left = []
            elif slot.pass_index not in taken:
                left.append(slot)
        yield from _others(segment, left)


def _stage_segments(graph: Graph, phase: Phase, block: Variant) -> Iterator[Segment]:
    """Stage after stage, and the passes before and behind each."""
    yield from (Segment((slot,)) for slot in phase.ahead)
    for each in phase.stages:
        if each.slots:
            yield Segment(each.slots, block_rows(graph, each.slots, block))
        yield from (Segment((Slot(index),)) for index in each.behind)
    yield from (Segment((Slot(index),)) for index in phase.after)


def _others(segment: Segment, slots: Sequence[Slot]) -> Iterator[Segment]:
    """The segment with only those of its slots that no region took, if there are any."""
    if slots:
        yield replace(segment, slots=tuple(slots))


def _region_segments(
    graph: Graph, region: PassRegion, first: RecomputeSet, block: Variant
) -> list[Segment]:
    """A region behind the passes that recompute for it, and around both what goes by no block."""
    ahead = [Segment((Slot(index, recompute=True),)) for index in first.packs]
    ahead += [Segment((Slot(index),)) for index in region.before]
    again_slots = tuple(Slot(index, recompute=True) for index in first.members)
    slots = (*again_slots, *(Slot(index) for index in region.members))
    behind = [Segment((Slot(index),)) for index in region.after]
    return [*ahead, Segment(slots, block_rows(graph, slots, block)), *behind]


def block_rows(graph: Graph, slots: Iterable[Slot], block: Variant) -> int:
    """Samples of a block: the slots' common unit, or as many of it as fit a run."""
    passes = [graph.passes[slot.pass_index] for slot in slots]
    unit = lcm(*(pass_.unit for pass_ in passes))
    if block is Variant.MEMORY:
        return min(unit, graph.batch)
    uses = (use for pass_ in passes for use in (*pass_.reads, *pass_.writes) if not use.whole)
    row = max(graph.buffers[use.buffer].row_nbytes for use in uses)
    rows = section_rows(graph.batch, row, CHUNKS[block] * graph.chunk_size)
    return min(-(-rows // unit) * unit, graph.batch)

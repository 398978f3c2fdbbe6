"""From a choice of what to recompute to segments, and from there to a plan that offloads the rest.

Fusible regions whose maps are recomputed go section-major in both directions. These maps exist for
the samples of one block at a time. Layers that normalize over the batch go by block in barrier
stages. Maps outside of both are recomputed for the full batch. What else must leave the device is
offloaded, outermost maps first: they are idle for longest.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm

import numpy as np

from ...graph import RUN_CHUNKS, Graph, section_rows
from ...units import format_bytes
from ..ir.costs import Costs
from ..ir.plan import Plan, Segment, Slot
from ..lowering.idle import IdleInterval, forward_backward_idle, intra_pass_idle, transfers_of
from ..lowering.limits import MemoryLimit
from ..lowering.list_scheduler import required_nbytes
from ..lowering.program import Program, build_program
from ..lowering.segments import Variant, segments
from .barriers import Phase
from .candidates import Candidates, FullBatchRecompute, with_recomputed
from .regions import PassRegion, RecomputeSet, recompute_passes

LONG_RUN_CHUNKS = 16  # where little moves, longer blocks save launches
CHUNKS = {Variant.PERFORMANCE: RUN_CHUNKS, Variant.KEEP: LONG_RUN_CHUNKS}
NOTHING = RecomputeSet((), ())


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


class _FreeIntervals:
    """The idle intervals that are not taken yet, those of the outermost maps first."""

    def __init__(self, gaps: Iterable[IdleInterval]) -> None:
        self._gaps = tuple(gaps)
        maps: dict[str, int] = {}
        rows = [(g.last, g.next, maps.setdefault(g.buffer, len(maps))) for g in self._gaps]
        self._last, self._back, self._map = np.array(rows, np.int64).reshape(-1, 3).T.copy()

    def take(self, launch: int, excess: int) -> list[IdleInterval]:
        """Sections of the outermost map that is idle at `launch`, the last first, up to `excess`.

        An interval that is taken ends before it began. It is idle at no launch then.
        """
        idle = np.flatnonzero((self._last < launch) & (launch < self._back))
        chosen, nbytes = list[IdleInterval](), 0
        for index in reversed(idle[self._map[idle] == self._map[idle[:1]]].tolist()):
            if nbytes < excess:
                chosen.append(self._gaps[index])
                nbytes += chosen[-1].nbytes
                self._back[index] = -1
        return chosen


@dataclass(frozen=True, slots=True)
class UnboundPlan:
    """A choice as segments and their program, before any offload."""

    graph: Graph
    candidates: Candidates
    choice: RecomputeChoice
    parts: tuple[Segment, ...]
    program: Program

    def plan(self, room: MemoryLimit) -> Plan | None:
        """The plan whose launches find their bytes in `room`; None where they cannot."""
        offloaded = _offloaded(self.graph, self.program, room)
        return None if offloaded is None else self.offloading(offloaded)

    def compute_s(self, costs: Costs) -> float:
        """What the launches take."""
        passes = self.graph.passes
        launches = self.program.launches
        return sum(costs.launch_s(passes[at.pass_index], at.stop - at.start) for at in launches)

    def offloading_all(self) -> Plan:
        """The plan that offloads all idle sections."""
        trips, others = (
            forward_backward_idle(self.graph, self.program),
            intra_pass_idle(self.graph, self.program),
        )
        return self.offloading([*trips, *others])

    def offloading(self, gaps: Sequence[IdleInterval], policy: str = "auto") -> Plan:
        """The plan of `policy` that offloads sections in these idle intervals."""
        return Plan(
            policy,
            self.parts,
            tuple(transfers_of(gaps)),
            reasons=_reasons(self.graph, self.candidates, self.choice, self.parts, gaps),
        )


def unbound_plan(graph: Graph, candidates: Candidates, choice: RecomputeChoice) -> UnboundPlan:
    """The choice as segments and their program."""
    parts = _parts(graph, candidates, choice)
    return UnboundPlan(graph, candidates, choice, parts, build_program(graph, Plan("auto", parts)))


def least_moving_plan(graph: Graph) -> Plan:
    """The plan of the smallest blocks, layer by layer, that offloads all idle sections."""
    return unbound_plan(
        graph, Candidates((), ()), RecomputeChoice(Variant.MEMORY, (), ())
    ).offloading_all()


def leanest_plans(graph: Graph, candidates: Candidates) -> Iterator[Plan]:
    """Plans of the smallest blocks that offload all idle sections, recomputing all maps or none."""
    regions = candidates.regions
    blocks = (Variant.MEMORY,) * len(regions)
    for recomputes in (True, False):
        names = (
            (name for r in region.recomputes if recomputes for name in r.buffers)
            for region in regions
        )
        full_batch = (
            frozenset(range(len(candidates.full_batch))) if recomputes else frozenset[int]()
        )
        choice = RecomputeChoice(Variant.MEMORY, blocks, tuple(map(frozenset, names)), full_batch)
        yield unbound_plan(graph, candidates, choice).offloading_all()


def _parts(graph: Graph, candidates: Candidates, choice: RecomputeChoice) -> tuple[Segment, ...]:
    """The segments of a choice."""
    parts = _segments(graph, candidates, choice)
    full_batch = _full_batch(candidates, choice)
    return tuple(
        with_recomputed(graph, parts, full_batch, choice.rest, memory_centric=choice.memory_centric)
    )


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
            yield Segment(each.slots, _block_rows(graph, each.slots, block))
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
    return [*ahead, Segment(slots, _block_rows(graph, slots, block)), *behind]


def _block_rows(graph: Graph, slots: Iterable[Slot], block: Variant) -> int:
    """Samples of a block: the slots' common unit, or as many of it as fit a run."""
    passes = [graph.passes[slot.pass_index] for slot in slots]
    unit = lcm(*(pass_.unit for pass_ in passes))
    if block is Variant.MEMORY:
        return min(unit, graph.batch)
    uses = (use for pass_ in passes for use in (*pass_.reads, *pass_.writes) if not use.whole)
    row = max(graph.buffers[use.buffer].row_nbytes for use in uses)
    rows = section_rows(graph.batch, row, CHUNKS[block] * graph.chunk_size)
    return min(-(-rows // unit) * unit, graph.batch)


def _offloaded(graph: Graph, prog: Program, room: MemoryLimit) -> list[IdleInterval] | None:
    """Sections to offload so that every launch finds its bytes in `room`; None if none suffice."""
    excess, moved = required_nbytes(prog) - room, list[IdleInterval]()
    if int(excess.max(initial=0)) <= 0:
        return moved
    gaps, others = _FreeIntervals(forward_backward_idle(graph, prog)), None
    fullest = int(excess.argmax())
    while excess[fullest] > 0:
        chosen = gaps.take(fullest, int(excess[fullest]))
        if not chosen:
            others = others or _FreeIntervals(intra_pass_idle(graph, prog))
            chosen = others.take(fullest, int(excess[fullest]))
        if not chosen:
            return None
        for gap in chosen:
            excess[gap.last + 1 : gap.next] -= gap.nbytes
        moved += chosen
        fullest = int(excess.argmax())
    return moved


def _reasons(
    graph: Graph,
    candidates: Candidates,
    choice: RecomputeChoice,
    parts: tuple[Segment, ...],
    moved: Sequence[IdleInterval],
) -> Mapping[str, str]:
    """Why maps are offloaded or recomputed, in words."""
    passes_of_stages = candidates.passes_of_stages(choice.stages)
    slots = [slot for part in parts for slot in part.slots]
    names = [graph.passes[s.pass_index].name + " again" * s.recompute for s in slots]
    reasons = {
        gap.buffer: f"idle from {names[gap.offload_after]} to {names[gap.needed_by]}"
        for gap in moved
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

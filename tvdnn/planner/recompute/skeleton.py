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
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from ...graph import Graph, is_lossy
from ...placement.cuda_blocks import usable_nbytes
from ...units import format_bytes
from ..ir.costs import Costs
from ..ir.plan import Plan
from ..lowering.build_program import build_program
from ..lowering.codes import Encoded, codes_between, codes_left
from ..lowering.idle import IdleInterval, bridges_of, forward_backward_idle, intra_pass_idle
from ..lowering.launch_limits import Array, MemoryLimit, Result, with_tightened_limits
from ..lowering.list_scheduler import required_nbytes
from ..lowering.program import Program
from ..lowering.rounded_codes import rounded_between
from ..lowering.segments import Variant, block_rows, pass_groups
from .barriers import Phase
from .candidates import Candidates
from .regions import FusibleRegion, PassRegion
from .supplies import Supplies
from .weave import Decision, Making, PassRun, weave

NBYTES = attrgetter("nbytes")


class MapMaking(NamedTuple):
    """A map that is made again for a pass."""

    buffer: str
    reader: int
    making: Decision


@dataclass(frozen=True, slots=True)
class RecomputeChoice:
    """What a search decides. Segments and programs follow from it.

    Regions that share a pass with a barrier stage are left out.
    """

    rest: Variant  # blocks of layers in no region, and of barrier stages
    blocks: tuple[Variant | None, ...]  # by region; None: its ops go layer by layer
    recomputed: tuple[frozenset[str], ...]  # by region, the maps that backward recomputes
    stages: frozenset[int] = frozenset()  # numbers of the barrier stages
    through: bool = True  # forward of a region without recomputed maps goes section-major too
    coded: bool = True  # passes leave all codes that they can
    made: frozenset[MapMaking] = frozenset()  # maps of the whole batch that are made again
    encoded: frozenset[Encoded] = frozenset()


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
        recomputes += [candidates.stages[number].recompute for number in sorted(choice.stages)]
        for recompute in recomputes:
            price = f"{1e3 * recompute.seconds:.2f} ms for {format_bytes(recompute.nbytes)}"
            reasons |= dict.fromkeys(sorted(recompute.buffers), price)
        return reasons


def skeleton_of(graph: Graph, candidates: Candidates, choice: RecomputeChoice) -> Skeleton:
    """The order of execution of a choice."""
    runs, supplies = tuple(_runs(graph, candidates, choice)), candidates.supplies
    if choice.stages:
        supplies = supplies.in_order([index for run in runs for index in run.passes])
    made = dict(_made(supplies, candidates, choice))
    parts = tuple(weave(graph, supplies, runs, made, choice.rest, lasting=not choice.made))
    known = candidates.supplies.producers
    codes = tuple(codes_left(graph, parts, known)) if choice.coded else ()
    rounded = {each for each in choice.encoded if is_lossy(each.form)}
    encoded = [
        bridge
        for between, maps in ((codes_between, choice.encoded - rounded), (rounded_between, rounded))
        if maps
        for bridge in between(graph, parts, maps, codes)
    ]
    plan = Plan("auto", parts, (*codes, *encoded))
    return Skeleton(candidates, choice, build_program(graph, plan))


def _regions(
    candidates: Candidates, choice: RecomputeChoice
) -> Iterator[tuple[FusibleRegion, Variant, frozenset[str]]]:
    """The regions that go section-major, with the maps that each recomputes."""
    passes_of_stages = candidates.passes_of_stages(choice.stages)
    chosen = zip(candidates.regions, choice.blocks, choice.recomputed, strict=True)
    for region, block, recomputed in chosen:
        if block is not None and passes_of_stages.isdisjoint(region.passes):
            yield region, block, recomputed


def _made(
    supplies: Supplies, candidates: Candidates, choice: RecomputeChoice
) -> Iterator[tuple[tuple[str, int], Decision]]:
    """The reads for which the choice recomputes a map."""
    for _, _, recomputed in _regions(candidates, choice):
        for name in recomputed:
            for index in supplies.backward_readers(name):
                yield (name, index), Making.ONCE
    for number in choice.stages:
        for read in candidates.stages[number].made:
            yield read, Making.AFRESH
    for each in choice.made:
        yield (each.buffer, each.reader), each.making


def _runs(graph: Graph, candidates: Candidates, choice: RecomputeChoice) -> Iterator[PassRun]:
    """The passes in program order, those of regions and of barrier stages by block."""
    starts: dict[int, list[PassRun]] = {}
    taken = candidates.passes_of_stages(choice.stages)
    for each in (candidates.stages[number] for number in choice.stages):
        for phase in (each.forward, each.backward):
            starts[phase.passes[0]] = list(_stage_runs(graph, phase, choice.rest))
    for region, block, recomputed in _regions(candidates, choice):
        used = (*region.backward.members, *(region.forward.members if recomputed else ()))
        rows = block_rows(graph, used, block)
        if recomputed or choice.through:
            forward = block_rows(graph, region.forward.members, block)
            starts[region.forward.passes[0]] = _region_runs(region.forward, forward)
            taken = taken.union(region.forward.passes)
        starts[region.backward.passes[0]] = _region_runs(region.backward, rows)
        taken = taken.union(region.backward.passes)
    for group in pass_groups(graph):
        left: list[int] = []
        for index in group:
            if index in starts:
                yield from _others(left, choice)
                yield from starts[index]
                left = []
            elif index not in taken:
                left.append(index)
        yield from _others(left, choice)


def _others(indices: Sequence[int], choice: RecomputeChoice) -> Iterator[PassRun]:
    if indices:
        yield PassRun(tuple(indices), choice.rest, joins=bool(choice.made), makers_first=True)


def _stage_runs(graph: Graph, phase: Phase, block: Variant) -> Iterator[PassRun]:
    """Stage after stage, and the passes before and behind each."""
    yield from _apart(phase.ahead)
    for each in phase.stages:
        if each.passes:
            rows = block_rows(graph, (*each.makers, *each.passes), block)
            yield PassRun(each.passes, rows, makers_first=True)
        yield from _apart(each.behind)
    yield from _apart(phase.after)


def _region_runs(region: PassRegion, rows: int) -> list[PassRun]:
    """A region, and around it what goes by no block."""
    members = PassRun(region.members, rows, makers_first=True)
    return [*_apart(region.before), members, *_apart(region.after)]


def _apart(indices: Iterable[int]) -> Iterator[PassRun]:
    yield from (PassRun((index,), Variant.KEEP, joins=False) for index in indices)

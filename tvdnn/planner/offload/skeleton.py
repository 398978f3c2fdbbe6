"""Skeletons: orders of execution before any offload, and the choice of what to offload.

Layers go block by block. Neighbouring layers may go section-major: each block runs through all of
them while it is on the device, and the gradients between them never exist for the whole batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...graph import Graph
from ...placement import ALIGNMENT, aligned
from ..ir.costs import Costs
from ..ir.plan import Plan, Segment
from ..lowering.idle import IdleInterval, forward_backward_idle, intra_pass_idle
from ..lowering.limits import MemoryLimit
from ..lowering.list_scheduler import required_nbytes
from ..lowering.program import LiveInterval, contiguous_groups
from ..lowering.segments import Variant
from ..recompute.candidates import Candidates
from ..recompute.draft import RecomputeChoice, UnboundPlan, unbound_plan
from ..recompute.regions import MAPS, FusibleRegion, regions

MIN_SHARE = 0.01  # of the bytes of all maps: inner maps of less are worth no skeleton

Needed: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Skeleton:
    """An order of execution without recompute or offload, and when its sections are idle."""

    unbound: UnboundPlan

    @cached_property
    def needed(self) -> Needed:
        """The bytes that each launch needs."""
        return required_nbytes(self.unbound.program)

    @cached_property
    def least(self) -> Needed:
        """The bytes that each launch needs while all idle sections are offloaded."""
        change = np.zeros(len(self.needed) + 1, np.int64)
        for gap in self.all_idle:
            change[gap.last + 1] -= gap.nbytes
            change[gap.next] += gap.nbytes
        return self.needed + np.cumsum(change)[:-1]

    @cached_property
    def aligned_needed(self) -> Needed:
        """A lower bound of the bytes that each launch needs with all offsets aligned."""
        program = self.unbound.program
        return required_nbytes(program, map(self.aligned_nbytes, program.intervals))

    def aligned_nbytes(self, item: IdleInterval | LiveInterval) -> int:
        """The fewest bytes that the section takes up to the next one.

        The uppermost section, and one beside others in a run, need not fill its last alignment.
        """
        if (item.buffer, item.section) in self._in_runs:
            return item.nbytes - (ALIGNMENT - 1)
        return aligned(item.nbytes)

    @cached_property
    def _in_runs(self) -> frozenset[tuple[str, int]]:
        """Sections that a launch wants side by side with others."""
        stays = self.unbound.program.intervals
        runs = (run for run in contiguous_groups(self.unbound.program) if len(run) > 1)
        return frozenset((stays[n].buffer, stays[n].section) for run in runs for n in run)

    @cached_property
    def forward_backward_idle(self) -> list[IdleInterval]:
        return forward_backward_idle(self.unbound.graph, self.unbound.program)

    @cached_property
    def intra_pass_idle(self) -> list[IdleInterval]:
        return intra_pass_idle(self.unbound.graph, self.unbound.program)

    @cached_property
    def all_idle(self) -> list[IdleInterval]:
        return [*self.forward_backward_idle, *self.intra_pass_idle]

    def gaps(self, room: MemoryLimit) -> list[IdleInterval]:
        """Those between forward and backward where they suffice for `room`, else all intervals."""
        suffice = belady_choice(self.needed, self.forward_backward_idle, room) is not None
        return self.forward_backward_idle if suffice else self.all_idle


def skeletons(graph: Graph, costs: Costs) -> Iterator[Skeleton]:
    """Skeletons of blocks of three sizes, each different.

    Layer-major and, where fusible regions have enough inner maps, section-major in backward or in
    both directions.
    """
    found, seen = regions(graph, costs), set[tuple[Segment, ...]]()
    none = (frozenset[str](),) * len(found)
    for variant in (Variant.PERFORMANCE, Variant.KEEP, Variant.MEMORY):
        orders = ((None, False), (variant, False), (variant, True))
        for block, through in orders if _have_inner_maps(graph, found) else orders[:1]:
            choice = RecomputeChoice(variant, (block,) * len(found), none, through=through)
            unbound = unbound_plan(graph, Candidates(found, ()), choice)
            if unbound.parts not in seen:
                seen.add(unbound.parts)
                yield Skeleton(unbound)


def _have_inner_maps(graph: Graph, found: Sequence[FusibleRegion]) -> bool:
    inner = sum(graph.buffers[name].nbytes for region in found for name in region.inner)
    maps = sum(buffer.nbytes for buffer in graph.buffers.values() if buffer.kind in MAPS)
    return inner > MIN_SHARE * maps


def plans_offloading_all(graph: Graph, costs: Costs, policy: str) -> Iterator[Plan]:
    """Plans that offload all idle sections, those of the smallest blocks first."""
    for skeleton in reversed(list(skeletons(graph, costs))):
        yield skeleton.unbound.offloading(skeleton.all_idle, policy)


def belady_choice(
    needed: Needed, gaps: Sequence[IdleInterval], room: MemoryLimit
) -> list[IdleInterval] | None:
    """Idle intervals to offload so that launches that need `needed` bytes fit `room`, or None.

    Where bytes are short, the section of the farthest next use leaves (Belady 1966, of pages). It
    is idle for longest, and its copy may have begun at its last use. Of one map these are the last
    sections. Takes O(n log n).
    """
    coming = sorted(gaps, key=lambda gap: gap.last, reverse=True)
    idle: list[tuple[int, int, int, IdleInterval]] = []
    offloaded: list[tuple[int, int]] = []
    chosen, freed = list[IdleInterval](), 0
    for launch, excess in enumerate((needed - room).tolist()):
        while coming and coming[-1].last < launch:
            gap = coming.pop()
            heappush(idle, (-gap.next, -gap.section, len(coming), gap))
        while offloaded and offloaded[0][0] <= launch:
            freed -= heappop(offloaded)[1]
        while freed < excess:
            if not idle or -idle[0][0] <= launch:
                return None
            gap = heappop(idle)[-1]
            heappush(offloaded, (gap.next, gap.nbytes))
            chosen.append(gap)
            freed += gap.nbytes
    return chosen

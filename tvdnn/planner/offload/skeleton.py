"""tvDNN (PPoPP 2018): maps leave in sections and return; nothing is made again.

Layers go block by block. Neighbouring layers may go section-major, each block through all of them,
so that it is still there for the next, and the gradients between them never exist for the whole
batch.
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
from ..recompute.candidates import Recipes
from ..recompute.draft import Choice, Draft, auto
from ..recompute.regions import MAPS, Chain, chains

LITTLE = 0.01  # of the bytes of all maps

Needed: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Site:
    """A draft in which nothing is made again and nothing moves yet, and the gaps of its sections.

    Its launches need `needed` bytes. `trips` are gaps from forward to backward, `others` all else.
    """

    draft: Draft

    @cached_property
    def needed(self) -> Needed:
        return required_nbytes(self.draft.program)

    @cached_property
    def least(self) -> Needed:
        """Bytes that its launches need where all leaves that is idle meanwhile."""
        change = np.zeros(len(self.needed) + 1, np.int64)
        for gap in (*self.trips, *self.others):
            change[gap.last + 1] -= gap.nbytes
            change[gap.next] += gap.nbytes
        return self.needed + np.cumsum(change)[:-1]

    @cached_property
    def placed(self) -> Needed:
        """What its launches need with the room that placement asks, less what it may ask at most.

        The base of what lies alone is aligned, and so is that of what lies above it, but of the
        uppermost, and where it lies beside others in a run.
        """
        program = self.draft.program
        return required_nbytes(program, map(self.placed_nbytes, program.intervals))

    def placed_nbytes(self, item: IdleInterval | LiveInterval) -> int:
        """Bytes that the section of a gap or stay takes at least, less what is below its base."""
        if (item.buffer, item.section) in self._in_runs:
            return item.nbytes - (ALIGNMENT - 1)
        return aligned(item.nbytes)

    @cached_property
    def _in_runs(self) -> frozenset[tuple[str, int]]:
        """Sections that a launch wants side by side with others."""
        stays = self.draft.program.intervals
        runs = (run for run in contiguous_groups(self.draft.program) if len(run) > 1)
        return frozenset((stays[n].buffer, stays[n].section) for run in runs for n in run)

    @cached_property
    def trips(self) -> list[IdleInterval]:
        return forward_backward_idle(self.draft.graph, self.draft.program)

    @cached_property
    def others(self) -> list[IdleInterval]:
        return intra_pass_idle(self.draft.graph, self.draft.program)

    def gaps(self, room: MemoryLimit) -> list[IdleInterval]:
        """Gaps of which some suffice for `room`, if any do: trips, and others where they must."""
        moves = farthest(self.needed, self.trips, room) is not None
        return self.trips if moves else [*self.trips, *self.others]


def sites(graph: Graph, costs: Costs) -> Iterator[Site]:
    """Drafts of blocks of three sizes, each different.

    Layer-major and, where maps that chains alone use are more than a little, section-major in
    backward or both ways.
    """
    found, seen = chains(graph, costs), set[tuple[Segment, ...]]()
    none = (frozenset[str](),) * len(found)
    for variant in (Variant.PERFORMANCE, Variant.KEEP, Variant.MEMORY):
        ways = ((None, False), (variant, False), (variant, True))
        for block, through in ways if _much(graph, found) else ways[:1]:
            choice = Choice(variant, (block,) * len(found), none, through=through)
            draft = auto(graph, Recipes(found, ()), choice)
            if draft.parts not in seen:
                seen.add(draft.parts)
                yield Site(draft)


def _much(graph: Graph, found: Sequence[Chain]) -> bool:
    """Whether the inner maps of chains are a share of all maps worth a site."""
    inner = sum(graph.buffers[name].nbytes for chain in found for name in chain.inner)
    maps = sum(buffer.nbytes for buffer in graph.buffers.values() if buffer.kind in MAPS)
    return inner > LITTLE * maps


def moving_all(graph: Graph, costs: Costs, policy: str) -> Iterator[Plan]:
    """Plans that move all that is idle, those of the least blocks first."""
    for site in reversed(list(sites(graph, costs))):
        yield site.draft.moving([*site.trips, *site.others], policy)


def farthest(
    needed: Needed, gaps: Sequence[IdleInterval], room: MemoryLimit
) -> list[IdleInterval] | None:
    """Gaps to spend away so that launches that need `needed` bytes find them in `room`, or None.

    Where bytes are short, what comes back last leaves: it has the longest time idle, and by when it
    was used last it may have begun to leave long before (Belady 1966, of pages). Of one map these
    are the last sections. Takes O(n log n).
    """
    coming = sorted(gaps, key=lambda gap: gap.last, reverse=True)
    idle: list[tuple[int, int, int, IdleInterval]] = []
    away: list[tuple[int, int]] = []
    moved, gone = list[IdleInterval](), 0
    for launch, excess in enumerate((needed - room).tolist()):
        while coming and coming[-1].last < launch:
            gap = coming.pop()
            heappush(idle, (-gap.next, -gap.section, len(coming), gap))
        while away and away[0][0] <= launch:
            gone -= heappop(away)[1]
        while gone < excess:
            if not idle or -idle[0][0] <= launch:
                return None
            gap = heappop(idle)[-1]
            heappush(away, (gap.next, gap.nbytes))
            moved.append(gap)
            gone += gap.nbytes
    return moved

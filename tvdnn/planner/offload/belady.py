"""Belady's choice of what to offload, and the skeletons from which it is chosen.

Layers go block by block. Neighbouring layers may go section-major: each block runs through all of
them while it is on the device, and the gradients between them never exist for the whole batch.
"""

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import product

from ...graph import Graph
from ..ir.costs import Costs
from ..ir.plan import Plan, Segment
from ..lowering.idle import IdleInterval
from ..lowering.launch_limits import Array, MemoryLimit
from ..lowering.segments import Variant
from ..recompute.candidates import Candidates
from ..recompute.regions import MAPS, FusibleRegion, regions
from ..recompute.skeleton import RecomputeChoice, Skeleton, skeleton_of
from ..recompute.supplies import Supplies

MIN_SHARE = 0.01  # of the bytes of all maps: inner maps of less are worth no skeleton


def skeletons(graph: Graph, costs: Costs) -> Iterator[Skeleton]:
    """Skeletons of blocks of three sizes, each different.

    Layer-major and, where fusible regions have enough inner maps, section-major in backward or in
    both directions. With all codes that passes can leave, then without.
    """
    supplies, seen = Supplies(graph), set[tuple[tuple[Segment, ...], bool]]()
    found = regions(supplies, costs)
    none = (frozenset[str](),) * len(found)
    variants = (Variant.PERFORMANCE, Variant.KEEP, Variant.MEMORY)
    for coded, variant in product((True, False), variants):
        orders = ((None, False), (variant, False), (variant, True))
        for block, through in orders if _have_inner_maps(graph, found) else orders[:1]:
            blocks = (block,) * len(found)
            choice = RecomputeChoice(variant, blocks, none, through=through, coded=coded)
            skeleton = skeleton_of(graph, Candidates(supplies, found), choice)
            plan = skeleton.program.plan
            if (plan.segments, bool(plan.bridges)) not in seen:
                seen.add((plan.segments, bool(plan.bridges)))
                yield skeleton


def _have_inner_maps(graph: Graph, found: Sequence[FusibleRegion]) -> bool:
    inner = sum(graph.buffers[name].nbytes for region in found for name in region.inner)
    maps = sum(buffer.nbytes for buffer in graph.buffers.values() if buffer.kind in MAPS)
    return inner > MIN_SHARE * maps


def plans_offloading_all(graph: Graph, costs: Costs, policy: str) -> Iterator[Plan]:
    """Plans that offload all idle sections, those of the smallest blocks first."""
    for skeleton in reversed(list(skeletons(graph, costs))):
        yield skeleton.offloading(skeleton.all_idle, policy)


def belady_choice(
    required: Array, intervals: Sequence[IdleInterval], limits: MemoryLimit
) -> list[IdleInterval] | None:
    """Idle intervals to offload so that launches that require `required` bytes fit, or None.

    Where bytes are short, the section of the farthest next use leaves (Belady 1966, of pages). It
    is idle for longest, and its copy may have begun at its last use. Of one map these are the last
    sections. Takes O(n log n).
    """
    return first_ranked(required, intervals, limits, lambda idle: -idle.next)


def first_ranked(
    required: Array,
    intervals: Sequence[IdleInterval],
    limits: MemoryLimit,
    rank: Callable[[IdleInterval], int],
) -> list[IdleInterval] | None:
    """Idle intervals as each launch needs them, of the lowest rank first; None if too few are idle.

    Of one rank the last sections leave.
    """
    coming = sorted(intervals, key=lambda idle: idle.last, reverse=True)
    present: list[tuple[int, int, int, IdleInterval]] = []
    offloaded: list[tuple[int, int]] = []
    chosen, freed = list[IdleInterval](), 0
    for launch, excess in enumerate((required - limits).tolist()):
        while coming and coming[-1].last < launch:
            idle = coming.pop()
            heappush(present, (rank(idle), -idle.section, len(coming), idle))
        while offloaded and offloaded[0][0] <= launch:
            freed -= heappop(offloaded)[1]
        while freed < excess:
            if not present:
                return None
            idle = heappop(present)[-1]
            if idle.next > launch:
                heappush(offloaded, (idle.next, idle.nbytes))
                chosen.append(idle)
                freed += idle.nbytes
    return chosen

"""All that is made again by block: fusible regions, and groups of ops in barrier stages."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from ...graph import Graph
from ..ir.costs import Costs
from .barriers import StagedGroup, barrier_stages
from .regions import MAPS, FusibleRegion, op_groups_of, regions, spans_of
from .supplies import Supplies

MIN_SHARE = 0.01  # of the largest map's bytes: less is worth no barrier stages


@dataclass(frozen=True)
class Candidates:
    """What a graph may make again by block, and how each read of it can be made again."""

    supplies: Supplies
    regions: tuple[FusibleRegion, ...] = ()
    find_stages: Callable[[], tuple[StagedGroup, ...]] = tuple

    @cached_property
    def stages(self) -> tuple[StagedGroup, ...]:
        """Barrier stages, found when first asked for: few plans need them."""
        return self.find_stages()

    def passes_of_stages(self, stages: Iterable[int]) -> frozenset[int]:
        """The passes of these barrier stages, which no region may have then."""
        return frozenset(index for number in stages for index in self.stages[number].passes)


def find_candidates(graph: Graph, costs: Costs) -> Candidates:
    """What the graph may make again by block."""
    supplies = Supplies(graph)

    def find_stages() -> tuple[StagedGroup, ...]:
        maps = (buffer.nbytes for buffer in graph.buffers.values() if buffer.kind in MAPS)
        groups, least = op_groups_of(graph, spans_of(graph)), MIN_SHARE * max(maps, default=0)
        return tuple(barrier_stages(supplies, costs, groups, least))

    return Candidates(supplies, regions(supplies, costs), find_stages)

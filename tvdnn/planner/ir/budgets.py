"""Budgets: the bytes inside which a step is planned."""

from dataclasses import dataclass

from ...graph import Graph
from .page_map import PAGE_NBYTES


@dataclass(frozen=True, slots=True)
class Budgets:
    """Bytes to plan inside; None where there is no limit."""

    device: int | None = None
    host: int | None = None  # pinned
    arena: int | None = None  # what the graph's fixed bytes leave of the device's
    page_nbytes: int | None = PAGE_NBYTES  # of a paged arena; None: the device maps no pages

    @classmethod
    def of(
        cls, graph: Graph, device: int | None, host: int | None = None, *, paged: bool = True
    ) -> "Budgets":
        """The budgets of a graph on a device, whose arena may be `paged`."""
        arena = None if device is None else device - graph.fixed_nbytes
        return cls(device, host, arena, PAGE_NBYTES if paged else None)

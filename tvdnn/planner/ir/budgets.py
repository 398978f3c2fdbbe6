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
    page_nbytes: int = PAGE_NBYTES  # of a paged arena

    @classmethod
    def of(cls, graph: Graph, device: int | None, host: int | None = None) -> "Budgets":
        """The budgets of a graph on a device."""
        arena = None if device is None else device - graph.fixed_nbytes
        return cls(device, host, arena, PAGE_NBYTES)

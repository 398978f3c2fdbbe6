"""Budgets: the bytes inside which a step is planned."""

from dataclasses import dataclass

from ...graph import Graph


@dataclass(frozen=True, slots=True)
class Budgets:
    """Bytes to plan inside; None where there is no limit."""

    device: int | None = None
    host: int | None = None  # pinned
    arena: int | None = None  # what the graph's fixed bytes leave of the device's

    @classmethod
    def of(cls, graph: Graph, device: int | None, host: int | None = None) -> "Budgets":
        """The budgets of a graph on a device."""
        return cls(device, host, None if device is None else device - graph.fixed_nbytes)

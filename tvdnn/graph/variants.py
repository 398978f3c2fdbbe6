"""Variants: the graphs of one step, its ops fused or not, its optional maps there or not."""

from collections.abc import Callable

from .passes import Graph


class GraphVariants:
    """The graphs of one step, each expanded when first asked for.

    `expand(fused, low_memory)` makes one. Ops are fused or run one by one. A low-memory graph has
    no optional maps, which only save time; it computes the same bits.
    """

    def __init__(self, expand: Callable[[bool, bool], Graph]) -> None:
        self._expand = expand
        self._graphs: dict[tuple[bool, bool], Graph] = {}

    def graph(self, *, fused: bool, low_memory: bool = False) -> Graph:
        """The graph; without `low_memory`, or where no map is optional, the one with all maps."""
        if low_memory and not self.graph(fused=fused).has_low_memory_variant:
            low_memory = False
        if (fused, low_memory) not in self._graphs:
            self._graphs[fused, low_memory] = self._expand(fused, low_memory)
        return self._graphs[fused, low_memory]

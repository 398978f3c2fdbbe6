"""Variants: the graphs of one step, its ops fused or not."""

from collections.abc import Callable

from .passes import Graph


class GraphVariants:
    """The graphs of one step, each expanded when first asked for.

    `expand(fused)` makes one. Ops are fused or run one by one.
    """

    def __init__(self, expand: Callable[[bool], Graph]) -> None:
        self._expand = expand
        self._graphs: dict[bool, Graph] = {}

    def graph(self, *, fused: bool) -> Graph:
        if fused not in self._graphs:
            self._graphs[fused] = self._expand(fused)
        return self._graphs[fused]

"""Variants: the graphs of one step, its ops fused or not, its poolings coded or not."""

from collections.abc import Callable

from .passes import Graph


class GraphVariants:
    """The graphs of one step, each expanded when first asked for.

    `expand(fused, coded_pools, masks_by_signs)` makes one. Ops are fused or run one by one. Where
    they are not fused, max poolings behind a ReLU leave codes or read their inputs again. Where
    they are, normalizations take the masks of their ReLUs from signs, or compute them again.
    """

    def __init__(self, expand: Callable[[bool, bool, bool], Graph]) -> None:
        self._expand = expand
        self._graphs: dict[tuple[bool, bool, bool], Graph] = {}

    def graph(
        self, *, fused: bool, coded_pools: bool = False, masks_by_signs: bool = False
    ) -> Graph:
        key = fused, coded_pools and not fused, masks_by_signs and fused
        if key not in self._graphs:
            self._graphs[key] = self._expand(*key)
        return self._graphs[key]

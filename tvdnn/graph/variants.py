"""Variants: the graphs of one step, by the rewrites of its network."""

from collections.abc import Callable
from typing import NamedTuple

from .passes import Graph


class Rewrites(NamedTuple):
    """How the ops of a network are rewritten before a step is expanded."""

    fused: bool = False  # ops that one kernel computes are joined
    coded_pools: bool = False  # max poolings behind a ReLU leave codes, where ops are not joined
    # Joined normalizations take the masks of their ReLUs from signs, and do not compute them again.
    masks_by_signs: bool = False
    # Pointwise convolutions and their weight gradients make the maps that they alone read, as they
    # load what these are made of.
    remakes_maps: bool = False


class GraphVariants:
    """The graphs of one step. `expand` makes each when it is first asked for."""

    def __init__(self, expand: Callable[[Rewrites], Graph]) -> None:
        self._expand = expand
        self._graphs: dict[Rewrites, Graph] = {}

    def graph(self, rewrites: Rewrites) -> Graph:
        if rewrites not in self._graphs:
            self._graphs[rewrites] = self._expand(rewrites)
        return self._graphs[rewrites]

"""Remakes: maps that forward passes write together, and how these passes run again."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from ...graph import Direction, Graph, Kind, overlap
from ..ir.costs import Costs
from ..recompute.regions import MAPS

INPUT_KINDS = (*MAPS, Kind.INPUT, Kind.WEIGHT)

Channels: TypeAlias = tuple[int, int] | None
Part: TypeAlias = tuple[str, tuple[int, ...]]  # of a map, what these passes write


@dataclass(frozen=True, slots=True)
class Remake:
    """Maps that some forward passes write together, for the whole batch."""

    buffers: frozenset[str]
    makers: tuple[int, ...]  # the passes that run again
    packs: tuple[int, ...]  # the passes that pack the weights that these read
    takes: tuple[Part, ...]  # of maps, what the makers read
    until: float  # the first pass that changes what they use: none runs again behind it
    seconds: float


class Remakes:
    """All remakes of a graph."""

    def __init__(self, graph: Graph, costs: Costs) -> None:
        self._graph, self._costs = graph, costs
        self._writers: dict[str, list[int]] = {}  # by buffer, its forward passes
        self._changed: dict[str, int] = {}  # by parameter, the first pass that changes it
        self._overwritten: dict[str, int] = {}  # by buffer, the first other pass that writes it
        self._read_back: set[str] = set()
        for index, pass_ in enumerate(graph.passes):
            if pass_.direction is Direction.FORWARD:
                for name in sorted(pass_.written_buffers):
                    self._writers.setdefault(name, []).append(index)
            else:
                self._read_back |= pass_.read_buffers
                for name in pass_.written_buffers:
                    self._overwritten.setdefault(name, index)
            for name in pass_.updates:
                self._changed.setdefault(name, index)
        self.all = tuple(filter(None, (self._remake(*group) for group in self._groups())))
        self.of: Mapping[str, Remake] = {name: each for each in self.all for name in each.buffers}
        self._parts: dict[Part, Remake | None] = {}

    def making(self, name: str, writers: tuple[int, ...]) -> Remake | None:
        """The remake of what these passes write of the map; None where they may not run again."""
        whole = self.of.get(name)
        if whole is None or {*writers} == {*self._writers[name]}:
            return whole
        key = name, writers
        if key not in self._parts:
            others = self._lasting(writers) - {name}
            buffers, makers = self._closed(others, {*writers})
            self._parts[key] = self._remake(frozenset((name, *buffers)), tuple(sorted(makers)))
        return self._parts[key]

    def _groups(self) -> Iterator[tuple[frozenset[str], tuple[int, ...]]]:
        """Maps that backward reads with all their writers, joined where one writes several.

        A map that such a pass reads and backward does not is made as well: pooling that noted its
        maxima reads one.
        """
        seen: set[str] = set()
        for name in self._writers:
            if name not in seen and self._graph.buffers[name].kind in MAPS:
                buffers, makers = self._closed({name}, set())
                seen |= buffers
                while lost := {n for n in self._taken(makers) - buffers if self._is_lost(n)}:
                    buffers, makers = self._closed(buffers | lost, makers)
                if buffers & self._read_back:
                    yield frozenset(buffers), tuple(sorted(makers))

    def _closed(self, buffers: set[str], makers: set[int]) -> tuple[set[str], set[int]]:
        """The buffers and their writers, with all other lasting buffers that these write."""
        more = buffers
        while more:
            makers = makers | {index for name in more for index in self._writers[name]}
            lasting = self._lasting(makers)
            buffers, more = buffers | lasting, lasting - buffers
        return buffers, makers

    def _lasting(self, makers: Iterable[int]) -> set[str]:
        buffers, passes = self._graph.buffers, self._graph.passes
        names = {name for index in makers for name in passes[index].written_buffers}
        return {n for n in names if buffers[n].kind in MAPS or n in self._read_back}

    def _taken(self, makers: Iterable[int]) -> set[str]:
        return {name for index in makers for name in self._graph.passes[index].read_buffers}

    def _is_lost(self, name: str) -> bool:
        """Whether a map is one that forward makes and backward never reads."""
        known = name in self._writers and name not in self._read_back
        return known and self._graph.buffers[name].kind is Kind.MAP

    def _remake(self, buffers: frozenset[str], makers: tuple[int, ...]) -> Remake | None:
        """The remake of these maps; None where the makers may not run again."""
        graph, taken = self._graph, self._taken(makers) - buffers
        passes = [graph.passes[index] for index in makers]
        if any(p.effects or p.updates or p.reduction for p in passes):
            return None
        if not buffers.isdisjoint(graph.outputs):
            return None
        if any(graph.buffers[name].kind not in MAPS for name in buffers):
            return None
        if any(graph.buffers[name].kind not in INPUT_KINDS for name in taken):
            return None
        weights = {name for name in taken if graph.buffers[name].kind is Kind.WEIGHT}
        reads = [
            (index, use.buffer, use.channels)
            for index, pass_ in zip(makers, passes, strict=True)
            for use in pass_.reads
            if use.buffer not in buffers | weights
        ]
        if any(self._is_changed(*read) for read in reads):
            return None
        packs = tuple(sorted(index for name in weights for index in self._writers[name]))
        again = [graph.passes[index] for index in (*packs, *makers)]
        changes = [self._changed.get(name, inf) for pass_ in again for name in pass_.params]
        changes += [self._overwritten.get(name, inf) for name in taken | buffers]
        takes = {(name, self._writers_of(name, channels)) for _, name, channels in reads}
        seconds = sum(self._costs.launch_s(pass_, pass_.domain) for pass_ in again)
        return Remake(buffers, makers, packs, tuple(sorted(takes)), min(changes), seconds)

    def _writers_of(self, name: str, channels: Channels) -> tuple[int, ...]:
        """The forward passes that write these channels of the map."""
        return tuple(i for i in self._writers.get(name, ()) if self._writes(i, name, channels))

    def _is_changed(self, reader: int, name: str, channels: Channels) -> bool:
        """Whether a forward pass behind the reader writes what it reads."""
        later = (index for index in self._writers.get(name, ()) if index > reader)
        return any(self._writes(index, name, channels) for index in later)

    def _writes(self, index: int, name: str, channels: Channels) -> bool:
        uses = (use for use in self._graph.passes[index].writes if use.buffer == name)
        return any(
            channels is None or use.channels is None or overlap(channels, use.channels)
            for use in uses
        )

"""Remakes: maps that forward passes write together, and how these passes run again."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf

from ...graph import Direction, Graph, Kind, overlap
from ..ir.costs import Costs
from ..recompute.regions import MAPS

INPUT_KINDS = (*MAPS, Kind.INPUT, Kind.WEIGHT)


@dataclass(frozen=True, slots=True)
class Remake:
    """Maps that some forward passes write together, for the whole batch."""

    buffers: frozenset[str]
    makers: tuple[int, ...]  # the passes that run again
    packs: tuple[int, ...]  # the passes that pack the weights that these read
    takes: tuple[tuple[str, tuple[int, ...]], ...]  # maps that the makers read, and their writers
    until: float  # the first pass that changes what they read: none runs again behind it
    seconds: float


class Remakes:
    """All remakes of a graph."""

    def __init__(self, graph: Graph, costs: Costs) -> None:
        self._graph, self._costs = graph, costs
        self._writers: dict[str, list[int]] = {}  # by buffer, its forward passes
        self._changed: dict[str, int] = {}  # by parameter, the first pass that changes it
        self._overwritten: dict[str, int] = {}  # by buffer, the first other pass that writes it
        self.read_back: set[str] = set()
        for index, pass_ in enumerate(graph.passes):
            forward = pass_.direction is Direction.FORWARD
            for name in pass_.written_buffers:
                if forward:
                    self._writers.setdefault(name, []).append(index)
                else:
                    self._overwritten.setdefault(name, index)
            if not forward:
                self.read_back |= pass_.read_buffers
            for name in pass_.updates:
                self._changed.setdefault(name, index)
        self.all = tuple(filter(None, (self._remake(*group) for group in self._groups())))
        self.of: Mapping[str, Remake] = {name: each for each in self.all for name in each.buffers}
        self._parts: dict[tuple[str, tuple[int, ...]], Remake | None] = {}

    def making(self, name: str, writers: tuple[int, ...]) -> Remake | None:
        """The remake of what these passes write of the map; None where they may not run again."""
        whole = self.of.get(name)
        if whole is None or {*writers} == {*self._writers[name]}:
            return whole
        key = name, writers
        if key not in self._parts:
            buffers, makers = self._closed({name}, {*writers}, {name})
            self._parts[key] = self._remake(frozenset(buffers), tuple(sorted(makers)))
        return self._parts[key]

    def _groups(self) -> Iterator[tuple[frozenset[str], tuple[int, ...]]]:
        """Maps that backward reads with all their writers, joined where one writes several."""
        seen: set[str] = set()
        for name in self._writers:
            if name not in seen and self._graph.buffers[name].kind in MAPS:
                buffers, makers = self._closed({name}, set())
                seen |= buffers
                while lost := {n for n in self._taken(makers) - buffers if self._is_lost(n)}:
                    buffers, makers = self._closed(buffers | lost, makers)
                if buffers & self.read_back:
                    yield frozenset(buffers), tuple(sorted(makers))

    def _closed(
        self, buffers: set[str], makers: set[int], partly: set[str] = frozenset()
    ) -> tuple[set[str], set[int]]:
        graph = self._graph
        more = buffers
        if partly:
            names = {name for index in makers for name in graph.passes[index].written_buffers}
            lasting = {n for n in names if graph.buffers[n].kind in MAPS or n in self.read_back}
            buffers, more = buffers | lasting, lasting - buffers
        while more:
            makers = makers | {index for name in more for index in self._writers[name]}
            names = {name for index in makers for name in graph.passes[index].written_buffers}
            lasting = {n for n in names if graph.buffers[n].kind in MAPS or n in self.read_back}
            buffers, more = buffers | lasting, lasting - buffers
        return buffers, makers

    def _taken(self, makers: Iterable[int]) -> set[str]:
        return {name for index in makers for name in self._graph.passes[index].read_buffers}

    def _is_lost(self, name: str) -> bool:
        known = name in self._writers and name not in self.read_back
        return known and self._graph.buffers[name].kind is Kind.MAP

    def _remake(self, buffers: frozenset[str], makers: tuple[int, ...]) -> Remake | None:
        """The remake of these maps; None where the makers may not run again."""
        graph, taken = self._graph, self._taken(makers) - buffers
        passes = [graph.passes[index] for index in makers]
        if any(p.effects or p.updates or p.reduction for p in passes) or buffers & {*graph.outputs}:
            return None
        if any(graph.buffers[name].kind not in MAPS for name in buffers):
            return None
        if any(graph.buffers[name].kind not in INPUT_KINDS for name in taken):
            return None
        weights = {name for name in taken if graph.buffers[name].kind is Kind.WEIGHT}
        if any(
            self._changes(use.buffer, use.channels, index)
            for index in makers
            for use in graph.passes[index].reads
            if use.buffer not in buffers | weights
        ):
            return None
        packs = tuple(sorted(index for name in weights for index in self._writers[name]))
        params = (name for index in (*makers, *packs) for name in graph.passes[index].params)
        until = min((self._changed.get(name, inf) for name in params), default=inf)
        until = min([until, *(self._overwritten.get(name, inf) for name in taken)])
        seconds = sum(
            self._costs.launch_s(graph.passes[index], graph.passes[index].domain)
            for index in (*packs, *makers)
        )
        takes = {
            (use.buffer, self._writers_of(use.buffer, use.channels))
            for index in makers
            for use in graph.passes[index].reads
            if use.buffer not in buffers | weights
        }
        return Remake(buffers, makers, packs, tuple(sorted(takes)), until, seconds)

    def _writers_of(self, name: str, channels: tuple[int, int] | None) -> tuple[int, ...]:
        """The forward passes that write these channels of the map."""
        return tuple(
            index
            for index in self._writers.get(name, ())
            for write in self._graph.passes[index].writes
            if write.buffer == name
            and (
                channels is None or write.channels is None or overlap(channels, write.channels)
            )
        )

    def _changes(self, name: str, channels: tuple[int, int] | None, index: int) -> bool:
        """Whether a forward pass behind pass `index` writes what it reads."""
        behind = (self._graph.passes[i] for i in self._writers.get(name, ()) if i > index)
        writes = (write for pass_ in behind for write in pass_.writes if write.buffer == name)
        return any(
            channels is None or write.channels is None or overlap(channels, write.channels)
            for write in writes
        )

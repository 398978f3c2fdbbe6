"""Supplies: how a buffer can be made again for a pass that reads it.

The one test of what may be recomputed. It follows producers in an order of the passes. Just before
the reader each maker finds what it read the first time, or that is made again with it. From the
reader on no pass finds another value than without the recompute.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from ...graph import Direction, Graph, Kind, Pass, Use, overlap
from ...graph.dataflow import Producers, producers


@dataclass(frozen=True, slots=True)
class Supply:
    """The passes that make buffers again as a later pass is to find them."""

    buffers: frozenset[str]  # made together
    passes: tuple[int, ...]  # the makers in their order, without packs
    packs: tuple[int, ...]  # make the copies of weights that the makers read
    takes: frozenset[str]  # read by the makers, and made by none of them

    @property
    def all_passes(self) -> tuple[int, ...]:
        """The packs, then the makers."""
        return (*self.packs, *self.passes)


class Supplies:
    """The supplies of all reads of a graph, for an order of its passes."""

    def __init__(
        self, graph: Graph, order: Sequence[int] = (), known: Producers | None = None
    ) -> None:
        """`order` keeps what each pass reads. Left out, it is program order."""
        self.graph = graph
        self.producers = known or producers(graph)
        self._place: dict[int, int] = {}  # by pass
        self._reads: dict[str, list[tuple[int, int, frozenset[int]]]] = {}  # place, pass, sources
        self._writes: dict[str, list[tuple[int, Use]]] = {}  # with places
        self._updates: dict[str, list[int]] = {}  # by parameter, places
        for place, index in enumerate(order or range(len(graph.passes))):
            self._place[index] = place
            pass_ = graph.passes[index]
            for use, sources in zip(pass_.reads, self.producers[index], strict=True):
                self._reads.setdefault(use.buffer, []).append((place, index, sources))
            for use in pass_.writes:
                self._writes.setdefault(use.buffer, []).append((place, use))
            for name in pass_.updates:
                self._updates.setdefault(name, []).append(place)
        self._outputs = frozenset(graph.outputs)
        self._end_of_forward = sum(p.direction is Direction.FORWARD for p in graph.passes)
        self._found: dict[tuple[frozenset[int], int], Supply | None] = {}

    def in_order(self, order: Sequence[int]) -> "Supplies":
        """The supplies for another order of the passes."""
        return Supplies(self.graph, order, self.producers)

    def of(self, buffer: str, reader: int) -> Supply | None:
        """How to make what pass `reader` reads of a buffer again; None where that is not possible.

        It is not where a maker has other effects, where its parameters are updated by then, or
        where it would write over what the caller is given or over what later passes read.
        """
        return self.making(self.sources(buffer, reader), reader)

    def sources(self, buffer: str, reader: int) -> frozenset[int]:
        """The passes that made what pass `reader` reads of a buffer; none for a caller's input."""
        reads = zip(self.graph.passes[reader].reads, self.producers[reader], strict=True)
        return frozenset().union(*(found for use, found in reads if use.buffer == buffer))

    def backward_readers(self, buffer: str) -> list[int]:
        """The passes behind forward that read a buffer, in their order."""
        reads = self._reads.get(buffer, ())
        return [index for place, index, _ in reads if place >= self._end_of_forward]

    def making(self, sources: frozenset[int], reader: int) -> Supply | None:
        """How to make again what the passes `sources` wrote, before pass `reader`."""
        key = sources, reader
        if key not in self._found:
            makers = self._makers(sources, self._place[reader])
            self._found[key] = self._supply(makers) if makers else None
        return self._found[key]

    def _makers(self, sources: Iterable[int], before: int) -> set[int] | None:
        """The sources and all passes that must run with them; None where one may not."""
        makers, due = set[int](), set(sources)
        while due:
            while due:
                index = due.pop()
                if not self._may_run(index, before):
                    return None
                makers.add(index)
                for name in self.graph.passes[index].written_buffers:
                    due |= self._wanted(name, before)
                due -= makers
            found = self._made_with(makers, before)
            if found is None:
                return None
            due = found - makers
        return makers

    def _made_with(self, makers: set[int], before: int) -> set[int] | None:
        """The passes without which makers read nothing; None where these cannot be named."""
        written = {name for index in makers for name in self.graph.passes[index].written_buffers}
        found = set[int]()
        for index in makers:
            reads = zip(self.graph.passes[index].reads, self.producers[index], strict=True)
            for use, producing in reads:
                if (
                    use.buffer in written
                    or self.graph.buffers[use.buffer].kind is Kind.WEIGHT
                    or self._is_overwritten(use, index, before)
                    or self._is_lost(use.buffer, producing, before)
                ):
                    if not producing:
                        return None
                    found |= producing
        return found

    def _may_run(self, index: int, before: int) -> bool:
        """Whether the pass has no effect but its writes, and finds its parameters as they were."""
        pass_ = self.graph.passes[index]
        if pass_.direction is Direction.UPDATE or pass_.effects or pass_.updates:
            return False
        if pass_.reduction or self._outputs & pass_.written_buffers:
            return False
        updates, place = (self._updates.get(name, ()) for name in pass_.params), self._place[index]
        return not any(bisect_right(each, place) < bisect_left(each, before) for each in updates)

    def wanted(self, buffer: str, reader: int) -> set[int]:
        """The passes before `reader` whose values of the buffer are read from there on."""
        return self._wanted(buffer, self._place[reader])

    def _wanted(self, name: str, before: int) -> set[int]:
        return {each for each in self._read_from(name, before) if self._place[each] < before}

    def _read_from(self, name: str, place: int) -> Iterator[int]:
        """The passes whose values of the buffer are read at this place or later."""
        reads = self._reads.get(name, [])
        first = bisect_left(reads, place, key=itemgetter(0))
        return (source for _, _, sources in reads[first:] for source in sources)

    def _is_overwritten(self, use: Use, reader: int, before: int) -> bool:
        """Whether what pass `reader` read by the use is overwritten before this place."""
        writes, channels = self._writes.get(use.buffer, []), use.channels
        first = bisect_right(writes, self._place[reader], key=itemgetter(0))
        stop = bisect_left(writes, before, key=itemgetter(0))
        return any(
            channels is None or other.channels is None or overlap(channels, other.channels)
            for _, other in writes[first:stop]
        )

    def _is_lost(self, name: str, producing: frozenset[int], before: int) -> bool:
        """Whether forward alone reads this, and `before` is behind: a pooling's input, often."""
        if before < self._end_of_forward or not producing:
            return False
        return producing.isdisjoint(self._read_from(name, self._end_of_forward))

    def _supply(self, makers: Iterable[int]) -> Supply:
        passes = {
            index: self.graph.passes[index] for index in sorted(makers, key=self._place.__getitem__)
        }
        packs = tuple(index for index, pass_ in passes.items() if self._is_pack(pass_))
        written = frozenset(name for pass_ in passes.values() for name in pass_.written_buffers)
        read = frozenset(name for pass_ in passes.values() for name in pass_.read_buffers)
        others = tuple(index for index in passes if index not in packs)
        return Supply(written, others, packs, read - written)

    def _is_pack(self, pass_: Pass) -> bool:
        kinds = (self.graph.buffers[name].kind for name in pass_.written_buffers)
        return all(kind is Kind.WEIGHT for kind in kinds)

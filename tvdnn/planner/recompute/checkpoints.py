"""Checkpoints and the segments between them, by which SuperNeurons recomputes.

Wang et al., PPoPP 2018. A checkpoint is a map that is dear to make, of products or of several maps.
The cheap maps behind a checkpoint, up to the next ones, are a segment. They are made again from it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from ...graph import Direction, Graph, Kind, Pass
from .supplies import Supplies
from .weave import Making

# Kinds of a layer's tensors: its maps and their gradients.
TENSORS = (Kind.INPUT, Kind.MAP, Kind.GRAD)
# By read of backward, a buffer and a pass, the maps that are made again for it or read meanwhile.
Reads: TypeAlias = Mapping[tuple[str, int], frozenset[str]]
CONV = "conv"  # the trait, in `Graph.vdnn_traits`, of convolutions


class SegmentMode(Enum):
    """When the maps of a segment are made again."""

    SPEED = "speed"  # once, at the first layer of backward that reads one; then they stay
    MEMORY = "memory"  # for every layer of backward anew
    COSTAWARE = "costaware"  # once where that takes no more than the largest layer


@dataclass(frozen=True, slots=True)
class MapSegment:
    """Maps between checkpoints, and the reads of backward for which they are made again."""

    maps: frozenset[str]
    reads: tuple[tuple[str, int], ...]  # buffer and pass, in the order of the passes
    nbytes: int  # of its maps, their checkpoints and the first layer that reads them back


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The maps that SuperNeurons offloads, and the segments that it recomputes."""

    # Inputs, and outputs of convolutions, of layers of several inputs, and of cheap layers that
    # cannot be made again without a convolution.
    offloaded: frozenset[str]
    segments: tuple[MapSegment, ...]
    largest_layer_nbytes: int  # l_peak of the paper

    def is_speed_centric(self, segment: MapSegment) -> bool:
        """Whether the cost-aware mode makes the segment once."""
        return segment.nbytes <= self.largest_layer_nbytes

    def made(self, mode: SegmentMode) -> Mapping[tuple[str, int], Making]:
        """When each read of backward finds its map made again."""
        found: dict[tuple[str, int], Making] = {}
        for segment in self.segments:
            once = mode is SegmentMode.SPEED
            if mode is SegmentMode.COSTAWARE:
                once = self.is_speed_centric(segment)
            found |= dict.fromkeys(segment.reads, Making.ONCE if once else Making.AFRESH)
        return found


def find_checkpoints(supplies: Supplies) -> Checkpoints:
    """The checkpoints and segments of a graph."""
    graph = supplies.graph
    reads = dict(_cheap_reads(supplies))
    layers = _layers(graph)
    segments = tuple(_segment(graph, each, layers) for each in _connected(reads))
    largest = max((_nbytes(graph, used) for used in layers.values()), default=0)
    remade = frozenset(name for name, _ in reads)
    return Checkpoints(frozenset(_offloaded(graph)) - remade, segments, largest)


def _cheap_reads(supplies: Supplies) -> Iterator[tuple[tuple[str, int], frozenset[str]]]:
    """Reads of backward whose maps cheap passes make again, and the maps that these need."""
    graph = supplies.graph
    cheap = [_is_cheap(graph, pass_) for pass_ in graph.passes]
    found: dict[str, dict[int, frozenset[str]]] = {}
    for name, buffer in graph.buffers.items():
        if buffer.kind is Kind.MAP:
            for reader in supplies.backward_readers(name):
                supply = supplies.of(name, reader)
                if supply and supply.passes and all(cheap[index] for index in supply.passes):
                    needed = supply.buffers | supply.takes
                    found.setdefault(name, {})[reader] = needed
    pairs = [(reader, name) for name, readers in found.items() for reader in readers]
    for reader, name in sorted(pairs):
        yield (name, reader), found[name][reader]


def _is_cheap(graph: Graph, pass_: Pass) -> bool:
    """Whether the pass is of forward, multiplies nothing and joins no maps."""
    return pass_.direction is Direction.FORWARD and not pass_.flops and not _joins(graph, pass_)


def _joins(graph: Graph, pass_: Pass) -> bool:
    return len({*graph.ops[pass_.op].inputs}) > 1


def _offloaded(graph: Graph) -> Iterator[str]:
    """The network's inputs, and all maps but those that linear layers write."""
    yield from (name for name, value in graph.inputs.items() if value in graph.traced.inputs)
    forward = [each for each in graph.passes if each.direction is Direction.FORWARD]
    linear = {
        name
        for pass_ in forward
        if pass_.flops and graph.vdnn_traits.get(pass_.op) != CONV and not _joins(graph, pass_)
        for name in pass_.written_buffers
    }
    for name in {name for pass_ in forward for name in pass_.written_buffers} - linear:
        if graph.buffers[name].kind is Kind.MAP:
            yield name


def _layers(graph: Graph) -> Mapping[tuple[str, Direction], set[str]]:
    """The buffers that each layer uses in forward, and in backward."""
    found: dict[tuple[str, Direction], set[str]] = {}
    for pass_ in graph.passes:
        found.setdefault((pass_.op, pass_.direction), set()).update(pass_.used_buffers)
    return found


def _connected(reads: Reads) -> Iterator[Reads]:
    """The reads of each segment: of maps that are made of each other."""
    remade = {name for name, _ in reads}
    segment = {name: {name} for name in remade}
    for (name, _), needed in reads.items():
        for other in remade.intersection(needed):
            if segment[other] is not segment[name]:
                segment[name] |= segment[other]
                segment |= dict.fromkeys(segment[other], segment[name])
    found: dict[int, dict[tuple[str, int], frozenset[str]]] = {}
    for read, needed in reads.items():
        found.setdefault(id(segment[read[0]]), {})[read] = needed
    yield from found.values()


def _segment(
    graph: Graph, reads: Reads, layers: Mapping[tuple[str, Direction], set[str]]
) -> MapSegment:
    first = graph.passes[next(iter(reads))[1]]
    held = layers[first.op, first.direction].union(*reads.values())
    maps = frozenset(name for name, _ in reads)
    return MapSegment(maps, tuple(reads), _nbytes(graph, held))


def _nbytes(graph: Graph, names: Iterable[str]) -> int:
    buffers = (graph.buffers[name] for name in names)
    return sum(buffer.nbytes for buffer in buffers if buffer.kind in TENSORS)

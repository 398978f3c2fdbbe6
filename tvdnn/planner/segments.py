"""Default segments: a layer's passes, and those in place on its result, run block by block."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from math import lcm

from ..graph import RUN_CHUNKS, Graph, Kind, Pass, section_rows
from .plan import Segment, Slot

KEEP_RUN_CHUNKS = 16  # where nothing moves, longer blocks save launches


class Variant(Enum):
    """How far a layer goes at a time: a unit of samples, a run that fills the GPU, or all of them.

    Only a layer with maps of its own, which none but its passes use, goes by long runs under KEEP.
    """

    MEMORY = "m"
    PERFORMANCE = "p"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class Layer:
    """Consecutive passes that one segment runs block by block; `index` is in program order."""

    index: int
    passes: tuple[int, ...]


def layers(graph: Graph) -> tuple[Layer, ...]:
    """The passes in program order, cut into layers."""
    groups: list[list[int]] = []
    for index, pass_ in enumerate(graph.passes):
        if groups and _joins(graph, groups[-1], pass_) and index != graph.cut:
            groups[-1].append(index)
        else:
            groups.append([index])
    return tuple(Layer(number, tuple(group)) for number, group in enumerate(groups))


def _joins(graph: Graph, group: list[int], pass_: Pass) -> bool:
    members = [graph.passes[index] for index in group]
    first = members[0]
    if not (pass_.splittable and first.splittable) or pass_.direction is not first.direction:
        return False
    return pass_.op == first.op or _in_place_on(members, pass_)


def _in_place_on(members: Collection[Pass], pass_: Pass) -> bool:
    """Whether the pass only changes, in place, what the members wrote."""
    written = {use.buffer for member in members for use in member.writes}
    read = {use.buffer for use in pass_.reads}
    return all(use.buffer in written and use.buffer in read for use in pass_.writes)


def segments(
    graph: Graph, variants: Mapping[int, Variant], default: Variant
) -> tuple[Segment, ...]:
    """One segment a layer, its block set by the layer's variant."""
    users = _users(graph)
    return tuple(
        _segment(graph, layer, variants.get(layer.index, default), users) for layer in layers(graph)
    )


def _users(graph: Graph) -> dict[str, set[int]]:
    """By buffer, the passes that use it."""
    users: dict[str, set[int]] = {}
    for index, pass_ in enumerate(graph.passes):
        for use in (*pass_.reads, *pass_.writes):
            users.setdefault(use.buffer, set()).add(index)
    return users


def _segment(
    graph: Graph, layer: Layer, variant: Variant, users: Mapping[str, set[int]]
) -> Segment:
    passes = [graph.passes[index] for index in layer.passes]
    slots = tuple(Slot(index) for index in layer.passes)
    unit = lcm(*(pass_.unit for pass_ in passes))
    if unit >= passes[0].domain:
        return Segment(slots)
    if variant is Variant.MEMORY:
        return Segment(slots, unit)
    if variant is Variant.KEEP and not _has_own_maps(graph, layer, users):
        return Segment(slots)
    chunks = KEEP_RUN_CHUNKS if variant is Variant.KEEP else RUN_CHUNKS
    rows = _run_rows(graph, passes, chunks * graph.chunk_size)
    return Segment(slots, -(-rows // unit) * unit)


def _has_own_maps(graph: Graph, layer: Layer, users: Mapping[str, set[int]]) -> bool:
    """Whether a map by sample is used by several passes of the layer, and by no others."""
    uses = (use for index in layer.passes for use in graph.passes[index].writes if not use.whole)
    own = (users[use.buffer] for use in uses if use.buffer not in graph.outputs)
    return any(len(indices) > 1 and indices <= set(layer.passes) for indices in own)


def _run_rows(graph: Graph, passes: Collection[Pass], nbytes: int) -> int:
    """Samples whose largest map fits `nbytes`."""
    uses = (use for pass_ in passes for use in (*pass_.reads, *pass_.writes) if not use.whole)
    buffers = (graph.buffers[use.buffer] for use in uses)
    kinds = (Kind.INPUT, Kind.MAP, Kind.GRAD)
    row = max((buffer.row_nbytes for buffer in buffers if buffer.kind in kinds), default=1)
    return section_rows(graph.batch, row, nbytes)

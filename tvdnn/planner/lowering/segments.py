"""Default segments: a layer's passes, and those in place on its result, run block by block."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import lcm

from ...graph import RUN_CHUNKS, Graph, Kind, Pass, must_part, section_rows
from ..ir.plan import Segment, Slot


class Variant(Enum):
    """How far a layer goes at a time: a unit of samples, a run that fills the GPU, or all of them.

    All, also where a layer makes maps for itself alone: VGG-16(256) un-pools 1.6 GB of gradient so,
    at no higher peak, and takes 0.5 ms less in bf16, 1.6 in TF32, than in blocks of 256 MiB (H200,
    2026-11-21).
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
        if groups and _joins(graph, groups[-1], pass_) and index != graph.phase_split:
            groups[-1].append(index)
        else:
            groups.append([index])
    return tuple(Layer(number, tuple(group)) for number, group in enumerate(groups))


def _joins(graph: Graph, group: list[int], pass_: Pass) -> bool:
    members = [graph.passes[index] for index in group]
    first = members[0]
    if not (pass_.splittable and first.splittable) or pass_.direction is not first.direction:
        return False
    if any(must_part(member, pass_) for member in members):
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
    return tuple(
        in_blocks(graph, [Slot(i) for i in layer.passes], variants.get(layer.index, default))
        for layer in layers(graph)
    )


def in_blocks(graph: Graph, slots: Sequence[Slot], variant: Variant) -> Segment:
    """The slots as one segment, in the blocks of the variant."""
    passes = [graph.passes[slot.pass_index] for slot in slots]
    unit = lcm(*(pass_.unit for pass_ in passes))
    if unit >= passes[0].domain or variant is Variant.KEEP:
        return Segment(tuple(slots))
    if variant is Variant.MEMORY:
        return Segment(tuple(slots), unit)
    rows = _run_rows(graph, passes, RUN_CHUNKS * graph.chunk_size)
    return Segment(tuple(slots), -(-rows // unit) * unit)


def _run_rows(graph: Graph, passes: Collection[Pass], nbytes: int) -> int:
    """Samples whose largest map fits `nbytes`."""
    uses = (use for pass_ in passes for use in (*pass_.reads, *pass_.writes) if not use.whole)
    buffers = (graph.buffers[use.buffer] for use in uses)
    kinds = (Kind.INPUT, Kind.MAP, Kind.GRAD)
    row = max((buffer.row_nbytes for buffer in buffers if buffer.kind in kinds), default=1)
    return section_rows(graph.batch, row, nbytes)

"""Default segments: the passes of a layer, and passes in place on its result, run in blocks."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from math import lcm

from ...graph import RUN_CHUNKS, Graph, Kind, Pass, must_be_separate, section_rows
from ..ir.plan import Segment, Slot

LONG_RUN_CHUNKS = 16  # where little moves, longer blocks save launches


class Variant(Enum):
    """The block of a layer.

    KEEP also covers a layer's internal maps. VGG-16(256) un-pools 1.6 GB of gradient in one block
    at no higher peak. It takes 0.5 ms less in bf16, and 1.6 ms less in TF32, than blocks of 256 MiB
    (H200, 2026-11-21).
    """

    MEMORY = "m"  # one unit of samples
    PERFORMANCE = "p"  # a run that fills the GPU
    KEEP = "keep"  # all samples


CHUNKS = {Variant.PERFORMANCE: RUN_CHUNKS, Variant.KEEP: LONG_RUN_CHUNKS}


def pass_groups(graph: Graph) -> list[list[int]]:
    """The passes in program order, in groups of which one segment each runs block by block."""
    groups: list[list[int]] = []
    for index, pass_ in enumerate(graph.passes):
        if groups and _joins(graph, groups[-1], pass_) and index != graph.phase_split:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def _joins(graph: Graph, group: list[int], pass_: Pass) -> bool:
    members = [graph.passes[index] for index in group]
    first = members[0]
    if not (pass_.splittable and first.splittable) or pass_.direction is not first.direction:
        return False
    if any(must_be_separate(member, pass_) for member in members):
        return False
    return pass_.op == first.op or _only_changes_in_place(members, pass_)


def _only_changes_in_place(members: Collection[Pass], pass_: Pass) -> bool:
    written = {name for member in members for name in member.written_buffers}
    return pass_.written_buffers <= written & pass_.read_buffers


def segments(
    graph: Graph, variants: Mapping[int, Variant], default: Variant
) -> tuple[Segment, ...]:
    """One segment for each pass group. `variants` are by group, `default` is that of the others."""
    return tuple(
        in_blocks(graph, [Slot(index) for index in group], variants.get(number, default))
        for number, group in enumerate(pass_groups(graph))
    )


def in_blocks(graph: Graph, slots: Sequence[Slot], variant: Variant) -> Segment:
    """One segment of the slots, in blocks of the variant."""
    passes = [graph.passes[slot.pass_index] for slot in slots]
    unit = lcm(*(pass_.unit for pass_ in passes))
    if unit >= passes[0].domain or variant is Variant.KEEP:
        return Segment(tuple(slots))
    if variant is Variant.MEMORY:
        return Segment(tuple(slots), unit)
    rows = _run_rows(graph, passes, RUN_CHUNKS * graph.chunk_size)
    return Segment(tuple(slots), -(-rows // unit) * unit)


def _run_rows(graph: Graph, passes: Collection[Pass], nbytes: int) -> int:
    """The samples whose largest map fits `nbytes`."""

    uses = (use for pass_ in passes for use in (*pass_.reads, *pass_.writes) if not use.whole)
    buffers = (graph.buffers[use.buffer] for use in uses)
    kinds = (Kind.INPUT, Kind.MAP, Kind.GRAD)
    row = max((buffer.row_nbytes for buffer in buffers if buffer.kind in kinds), default=1)
    return section_rows(graph.batch, row, nbytes)


def block_rows(graph: Graph, indices: Iterable[int], block: Variant) -> int:
    """Samples of a block: the passes' common unit, or as many as fit a run."""
    if block is Variant.MEMORY:
        return 1
    passes = [graph.passes[index] for index in indices]
    uses = (use for pass_ in passes for use in (*pass_.reads, *pass_.writes) if not use.whole)
    row = max(graph.buffers[use.buffer].row_nbytes for use in uses)
    return section_rows(graph.batch, row, CHUNKS[block] * graph.chunk_size)

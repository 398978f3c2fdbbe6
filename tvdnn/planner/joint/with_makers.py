"""Weaving: the segments of an order with the passes that make maps again ahead of their readers."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import lcm

from ...graph import Graph
from ..ir.plan import Segment, Slot
from ..lowering.segments import Variant, in_blocks
from ..recompute.skeleton import block_rows
from ..recompute.weave import JoinedPasses, goes_by_sample
from .remakes import Remake


def woven(
    graph: Graph,
    parts: Sequence[Segment],
    made: Mapping[int, Collection[Remake]],
    block: Variant,
) -> Iterator[Segment]:
    """The segments; what is made again at one of them is so in it by block, or else ahead.

    `made` is by the first own pass of a segment.
    """
    for part in parts:
        own = min((slot.pass_index for slot in part.slots if not slot.recompute), default=-1)
        remakes = made.get(own, ())
        for index in sorted({index for each in remakes for index in each.packs}):
            yield Segment((Slot(index, recompute=True),))
        makers = sorted({index for each in remakes for index in each.makers})
        by_block = joined(graph, part, makers)
        for index in makers:
            if index not in by_block:
                yield in_blocks(graph, [Slot(index, recompute=True)], block)
        yield _with_makers(graph, part, by_block, block)


def _with_makers(graph: Graph, part: Segment, makers: Sequence[int], block: Variant) -> Segment:
    """The segment with these makers first in each block."""
    if not makers:
        return part
    slots = (*(Slot(index, recompute=True) for index in makers), *part.slots)
    passes = [graph.passes[slot.pass_index] for slot in slots]
    unit, domain = lcm(*(each.unit for each in passes)), passes[-1].domain
    rows = min(block_rows(graph, (slot.pass_index for slot in slots), block), part.block or domain)
    return Segment(slots, min(-(-rows // unit) * unit, domain))


def joined(graph: Graph, part: Segment, makers: Sequence[int]) -> list[int]:
    """The last makers that may go block by block with the segment."""
    passes = [graph.passes[slot.pass_index] for slot in part.slots]
    if not all(goes_by_sample(each) for each in passes):
        return []
    found, together = list[int](), JoinedPasses()
    for each in passes:
        together.add(each)
    for index in reversed(makers):
        maker = graph.passes[index]
        if not goes_by_sample(maker) or maker.domain != passes[0].domain:
            break
        if not together.admits(maker):
            break
        together.add(maker)
        found.insert(0, index)
    return found

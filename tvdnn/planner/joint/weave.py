"""Weaving: the segments of an order with the passes that make maps again ahead of their readers."""

from collections.abc import Iterator, Mapping, Sequence
from math import lcm
from typing import NamedTuple

from ...graph import Graph
from ..ir.plan import Segment, Slot
from ..lowering.segments import Variant, in_blocks
from ..recompute.regions import cannot_join, goes_by_sample
from ..recompute.skeleton import block_rows


class MadeRows(NamedTuple):
    """Rows of the maps that a pass makes again."""

    maker: int
    rows: tuple[int, int]


def woven(
    graph: Graph,
    parts: Sequence[Segment],
    made: Mapping[int, Sequence[MadeRows]],
    packs: Mapping[int, Sequence[int]],
    block: Variant,
) -> Iterator[Segment]:
    """The segments; what is made again at one of them is so in it by block, or else ahead.

    `made` and `packs` are by the first own pass of a segment.
    """
    for part in parts:
        point = own_pass(part)
        if point not in made:
            yield part
            continue
        items = sorted(made[point])
        for index in packs[point]:
            yield Segment((Slot(index, recompute=True),))
        by_block = joined(graph, part, sorted({each.maker for each in items}))
        inside = []
        for maker, rows in items:
            whole = rows == (0, graph.passes[maker].domain)
            slot = Slot(maker, recompute=True, rows=None if whole else rows)
            if maker in by_block:
                inside.append(slot)
            else:
                yield in_blocks(graph, [slot], block)
        if inside:
            slots = (*inside, *part.slots)
            domain = graph.passes[part.slots[0].pass_index].domain
            unit = lcm(*(graph.passes[slot.pass_index].unit for slot in slots))
            most = -(-(part.block or domain) // unit) * unit
            yield Segment(slots, min(block_rows(graph, slots, block), most, domain))
        else:
            yield part


def joined(graph: Graph, part: Segment, makers: Sequence[int]) -> list[int]:
    """The last makers that may go block by block with the segment."""
    passes = [graph.passes[slot.pass_index] for slot in part.slots]
    if not all(goes_by_sample(each) for each in passes):
        return []
    found: list[int] = []
    for index in reversed(makers):
        maker = graph.passes[index]
        if not goes_by_sample(maker) or maker.domain != passes[0].domain:
            break
        if any(cannot_join(maker, other) for other in passes):
            break
        passes.append(maker)
        found.insert(0, index)
    return found


def own_pass(part: Segment) -> int:
    """The first pass of a segment that is no recompute, -1 where there is none."""
    return min((slot.pass_index for slot in part.slots if not slot.recompute), default=-1)

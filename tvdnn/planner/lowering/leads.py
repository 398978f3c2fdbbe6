"""Leads: how far makers run ahead of the blocks of their segment.

A pass with a halo reads the sections before and after its own. A maker of what it reads joins its
blocks all the same if it is one section ahead. Makers of what that maker reads are as far ahead as
it is, or a section farther.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ...graph import Graph, Pass, Use
from ..ir.plan import Segment, Slot


def with_leads(graph: Graph, segment: Segment) -> Segment:
    """The segment with the leads of its makers."""
    if graph.row_tiles == 1 or not segment.block or not any(s.recompute for s in segment.slots):
        return segment
    found = zip(segment.slots, leads(graph, segment.slots), strict=True)
    return replace(segment, slots=tuple(replace(slot, lead=lead) for slot, lead in found))


def only_makers_lead(graph: Graph, slots: Sequence[Slot]) -> bool:
    """Whether the slots may go block by block, with leads of none but recomputes."""
    found = leads(graph, slots)
    return all(slot.recompute or not lead for slot, lead in zip(slots, found, strict=True))


def leads(graph: Graph, slots: Sequence[Slot]) -> list[int]:
    """By slot, the domain rows by which it must run ahead of the blocks. None needs whole buffers.

    A slot is ahead of every later one that uses what it writes, or that writes what it uses.
    """
    passes = [graph.passes[slot.pass_index] for slot in slots]
    found = [0] * len(passes)
    for number in reversed(range(len(passes))):
        pass_ = passes[number]
        ahead = (
            found[later] + rows
            for later in range(number + 1, len(passes))
            for rows in _distances(graph, pass_, passes[later])
        )
        found[number] = -(-max(ahead, default=0) // pass_.unit) * pass_.unit
    return found


def _distances(graph: Graph, pass_: Pass, later: Pass) -> Iterator[int]:
    """By buffer in which they conflict, the rows by which a pass must be ahead of a later one."""
    for name in pass_.written_buffers & later.used_buffers:
        yield _reach(graph, name, later.reads)
    for name in pass_.read_buffers & later.written_buffers:
        yield _reach(graph, name, pass_.reads)


def _reach(graph: Graph, name: str, reads: Iterable[Use]) -> int:
    """The domain rows beyond its own of which a pass reads the buffer."""
    buffer = graph.buffers[name]
    found = (use for use in reads if use.buffer == name and use.neighbour)
    return max((buffer.section * use.per for use in found), default=0)

"""Launch lengths: how many samples each layer takes at a time, by the bytes that are free then.

A launch over fewer samples holds fewer of them at once and takes longer in all. SuperNeurons picks
the workspace of each convolution so. Lengths change no bits.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import lcm

from ...graph import Graph
from ..ir.plan import Plan, Segment
from .build_program import build_program
from .list_scheduler import required_nbytes


def with_longest_launches(graph: Graph, plan: Plan, limit: int) -> Plan:
    """The plan with the longest launches whose bytes fit `limit`, halved until they do.

    Launches that do not fit at one unit of samples keep that length. The given plan has whole
    segments.
    """
    whole = plan.segments
    rows = {number: _domain(graph, segment) for number, segment in enumerate(whole)}
    while True:
        program = build_program(graph, plan)
        over = (required_nbytes(program) > limit).nonzero()[0].tolist()
        full = {program.launches[launch].segment for launch in over}
        shorter = {at: _half(rows[at]) for at in full if rows[at] > _least(graph, whole[at])}
        if not shorter:
            return plan
        rows |= shorter
        plan = replace(plan, segments=_resized(graph, plan.segments, shorter))


def _resized(
    graph: Graph, segments: tuple[Segment, ...], rows: Mapping[int, int]
) -> tuple[Segment, ...]:
    return tuple(
        with_launches_of(graph, each, rows[number]) if number in rows else each
        for number, each in enumerate(segments)
    )


def with_launches_of(graph: Graph, segment: Segment, rows: int) -> Segment:
    """The segment in launches of so many samples, rounded up to each pass's unit.

    A block has as many samples as the pass of the largest unit needs. The others go through it in
    several launches.
    """
    units = [graph.passes[slot.pass_index].unit for slot in segment.slots]
    domain = _domain(graph, segment)
    block = min(domain, _rounded(rows, lcm(*units)))
    slots = [
        replace(slot, run=run if (run := _rounded(rows, unit)) < block else 0)
        for slot, unit in zip(segment.slots, units, strict=True)
    ]
    return Segment(tuple(slots), block if block < domain else 0)


def _domain(graph: Graph, segment: Segment) -> int:
    return graph.passes[segment.slots[0].pass_index].domain


def _least(graph: Graph, segment: Segment) -> int:
    return min(graph.passes[slot.pass_index].unit for slot in segment.slots)


def _half(rows: int) -> int:
    return 1 << max(0, (rows - 1).bit_length() - 1)


def _rounded(rows: int, unit: int) -> int:
    return -(-rows // unit) * unit

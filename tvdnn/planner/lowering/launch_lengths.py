"""Launch lengths: how many samples each layer takes at a time, by the bytes that are free then.

A launch over fewer samples holds fewer of them at once and takes longer in all. SuperNeurons picks
the workspace of each convolution so. Lengths change no bits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import lcm

from ...graph import Graph, Pass
from ..ir.plan import Plan, Segment
from .build_program import build_program
from .leads import with_leads
from .list_scheduler import required_nbytes


def with_longest_launches(graph: Graph, plan: Plan, limit: int) -> Plan:
    """The plan with the longest launches whose bytes fit `limit`, halved until they do.

    Launches that do not fit at one unit of samples keep that length. Where weight gradients are
    among them that fit whole in fewer rows of sums, they have these. The given plan has whole
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
            return _with_fewer_sums(graph, plan, full, whole, limit) if full else plan
        rows |= shorter
        plan = replace(plan, segments=_resized(graph, plan.segments, shorter))


def with_fewest_sums(graph: Graph, plan: Plan, whole: Sequence[Segment]) -> Plan:
    """The plan with segments of weight gradients whole, in their least rows of sums.

    Others, and those that need no fewer bytes so, stay as they are. `whole` has all segments whole.
    """
    fewest = {at: _in_sums(graph, each, _least_sums) for at, each in enumerate(whole)}
    fewest = {at: segment for at, segment in fewest.items() if segment != whole[at]}
    before = _segment_nbytes(graph, plan)
    after = _segment_nbytes(graph, _with_segments(plan, fewest))
    return _with_segments(plan, {at: fewest[at] for at in fewest if after[at] < before[at]})


def _segment_nbytes(graph: Graph, plan: Plan) -> dict[int, int]:
    """By segment, the most bytes that a launch of it needs."""
    program = build_program(graph, plan)
    most: dict[int, int] = {}
    for launch, nbytes in zip(program.launches, required_nbytes(program).tolist(), strict=True):
        most[launch.segment] = max(most.get(launch.segment, 0), nbytes)
    return most


def _with_fewer_sums(
    graph: Graph, plan: Plan, full: set[int], whole: tuple[Segment, ...], limit: int
) -> Plan:
    """The plan with weight gradients of the whole batch in fewer rows of sums, where these fit.

    `full` segments have launches that do not fit at any length. Fewer sums take longer than short
    launches: they come last.
    """
    tried = {at: _in_sums(graph, whole[at], _least_sums) for at in full}
    tried = {at: segment for at, segment in tried.items() if segment != whole[at]}
    if not tried:
        return plan
    needed = _segment_nbytes(graph, _with_segments(plan, tried))
    fitting = {at: limit - needed[at] for at in tried if needed[at] <= limit}
    most = {at: _in_most_sums(graph, whole[at], free) for at, free in fitting.items()}
    return _with_segments(plan, most)


def _in_most_sums(graph: Graph, segment: Segment, free: int) -> Segment:
    """The segment with the most rows of sums that take at most `free` bytes beyond the least."""
    passes = [graph.passes[slot.pass_index] for slot in segment.slots]
    free //= sum(pass_.least_sums > 0 for pass_ in passes)

    def rows(pass_: Pass) -> int:
        least, buffer = pass_.least_sums, graph.buffers[pass_.writes[0].buffer]
        more = free // buffer.row_nbytes // max(1, least - 1) * (least - 1)
        return least + more if least + more < buffer.rows else 0

    return _in_sums(graph, segment, rows)


def _in_sums(graph: Graph, segment: Segment, rows: Callable[[Pass], int]) -> Segment:
    """The segment with so many rows of sums of each weight gradient that can have fewer."""
    passes = (graph.passes[slot.pass_index] for slot in segment.slots)
    slots = [
        replace(slot, sums=rows(pass_)) if pass_.least_sums else slot
        for slot, pass_ in zip(segment.slots, passes, strict=True)
    ]
    return Segment(tuple(slots), segment.block)


def _least_sums(pass_: Pass) -> int:
    return pass_.least_sums


def _with_segments(plan: Plan, segments: Mapping[int, Segment]) -> Plan:
    found = (segments.get(number, each) for number, each in enumerate(plan.segments))
    return replace(plan, segments=tuple(found))


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
    return with_leads(graph, Segment(tuple(slots), block if block < domain else 0))


def _domain(graph: Graph, segment: Segment) -> int:
    return graph.passes[segment.slots[0].pass_index].domain


def _least(graph: Graph, segment: Segment) -> int:
    return min(graph.passes[slot.pass_index].unit for slot in segment.slots)


def _half(rows: int) -> int:
    return 1 << max(0, (rows - 1).bit_length() - 1)


def _rounded(rows: int, unit: int) -> int:
    return -(-rows // unit) * unit

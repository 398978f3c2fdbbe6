"""Codes: those that passes leave beside what they write, and those of maps that are encoded."""

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from ...graph import (
    BITMAP,
    TF32,
    Direction,
    Fact,
    Form,
    Graph,
    Kind,
    Pass,
    in_form,
    may_rest_in,
    with_share,
)
from ...graph.dataflow import Producers, producers
from ..ir.plan import Bridge, Segment

# Share of the values of a map behind a ReLU that its code has room for, until steps have counted
# them: half of them are positive where nothing is known, and sections differ.
ROOM = 0.53
POOL = "pool"  # in the kinds of ops that write the maximum of several values: few are zero


class Encoded(NamedTuple):
    """A map that is encoded between forward and backward, from a section on."""

    buffer: str
    first: int  # section
    form: Form


def codes_left(
    graph: Graph, segments: Iterable[Segment], known: Producers | None = None
) -> Iterator[Bridge]:
    """The bridges of all codes that a pass can leave and that a later pass can read.

    A code rests on the device from the pass that leaves it until the last use that reads it.
    `known` are the graph's producers, where the caller has them.
    """
    if not any(use.forms for pass_ in graph.passes for use in pass_.reads):
        return
    slots: dict[int, int] = {}
    for number, slot in enumerate(slot for segment in segments for slot in segment.slots):
        if not slot.recompute:
            slots.setdefault(slot.pass_index, number)
    found: dict[tuple[str, Form, int], Bridge] = {}
    of_passes = producers(graph) if known is None else known
    for index, (pass_, sources) in enumerate(zip(graph.passes, of_passes, strict=True)):
        for use, producing in zip(pass_.reads, sources, strict=True):
            for form in use.forms:
                if len(producing) == 1 and (maker := min(producing)) in slots:
                    bridge = _bridge(graph, use.buffer, form, slots[maker], slots[index])
                    if form in _left_by(graph.passes[maker], use.buffer):
                        found.setdefault((use.buffer, form, maker), bridge)
    yield from found.values()


def _left_by(pass_: Pass, buffer: str) -> Iterator[Form]:
    """The forms in which a pass can leave a buffer that it writes."""
    return (form for use in pass_.writes if use.buffer == buffer for form in use.also)


def _bridge(graph: Graph, buffer: str, form: Form, after: int, needed_by: int) -> Bridge:
    sections = 0, graph.buffers[buffer].num_sections
    return Bridge(buffer, *sections, after, needed_by, needed_by, form=form, tier=None)


def codable(graph: Graph) -> Iterator[tuple[str, Form]]:
    """The maps that forward leaves and that are smaller in a form, each with the form.

    TF32 codes need no zeros. The others are for maps that a ReLU has just written.
    """
    outputs = frozenset(graph.outputs)
    pooled = {
        name
        for pass_ in graph.passes
        if pass_.direction is Direction.FORWARD and POOL in graph.ops[pass_.op].kind
        for name in pass_.written_buffers
    }
    for name, buffer in graph.buffers.items():
        if buffer.kind is not Kind.MAP or name in outputs:
            continue
        forms = [TF32]
        if Fact.NOT_NEGATIVE in buffer.facts and name not in pooled:
            forms.append(with_share(BITMAP, ROOM))
        for form in forms:
            if may_rest_in(buffer, form) and in_form(buffer, form).nbytes < buffer.nbytes:
                yield name, form
                break


def codes_between(
    graph: Graph, segments: Iterable[Segment], encoded: Collection[Encoded], left: Iterable[Bridge]
) -> Iterator[Bridge]:
    """The bridges of encoded maps, from their last use in forward to the first that reads them raw.

    `left` are the codes that passes leave: a use that can take one reads no raw values. A map that
    is written anew before, or that is used by block throughout, is not encoded.
    """
    has_code = {bridge.buffer for bridge in left}
    last: dict[str, tuple[int, int]] = {}  # by buffer, slot and segment of its last use in forward
    following: dict[str, tuple[int, int] | None] = {}  # of the next read; None: written first
    names, number = {each.buffer for each in encoded}, -1
    for place, segment in enumerate(segments):
        for slot in segment.slots:
            number += 1
            pass_ = graph.passes[slot.pass_index]
            forward = pass_.direction is Direction.FORWARD and not slot.recompute
            if forward:
                last |= dict.fromkeys(pass_.used_buffers & names, (number, place))
                continue
            taking = {use.buffer for use in pass_.reads if use.forms} & has_code
            for name in (pass_.read_buffers - taking) & names:
                following.setdefault(name, (number, place))
            for name in pass_.written_buffers & names:
                following.setdefault(name, None)
    for each in sorted(encoded):
        behind = following.get(each.buffer)
        if behind is not None and each.buffer in last and last[each.buffer][1] < behind[1]:
            count = graph.buffers[each.buffer].num_sections - each.first
            slots = last[each.buffer][0], behind[0], behind[0]
            yield Bridge(each.buffer, each.first, count, *slots, form=each.form, tier=None)

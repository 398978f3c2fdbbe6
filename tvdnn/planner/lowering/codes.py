"""Codes: those that passes leave beside what they write, and those of maps that are encoded."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
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
    Use,
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


class LaterRead(NamedTuple):
    """A read behind forward, or by a recompute."""

    slot: int
    segment: int
    use: Use


@dataclass(slots=True)
class Turn:
    """The last use of a buffer in forward, and its reads behind, up to a write."""

    slot: int = -1
    segment: int = -1
    reads: list[LaterRead] = field(default_factory=list)
    is_rewritten: bool = False


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
    turns = turns_of(graph, segments, {each.buffer for each in encoded})
    for each in sorted(encoded):
        turn = turns.get(each.buffer)
        reads = turn.reads if turn else ()
        raw = (read for read in reads if not (read.use.forms and each.buffer in has_code))
        behind = next(raw, None)
        if turn and behind and turn.segment < behind.segment:
            count = graph.buffers[each.buffer].num_sections - each.first
            slots = turn.slot, behind.slot, behind.slot
            yield Bridge(each.buffer, each.first, count, *slots, form=each.form, tier=None)


def turns_of(
    graph: Graph, segments: Iterable[Segment], names: Collection[str] | None = None
) -> Mapping[str, Turn]:
    """By buffer of these names (None: all) that forward uses, its turn from forward to backward."""
    found: dict[str, Turn] = {}
    numbered = ((place, slot) for place, segment in enumerate(segments) for slot in segment.slots)
    for number, (place, slot) in enumerate(numbered):
        pass_ = graph.passes[slot.pass_index]
        if pass_.direction is Direction.FORWARD and not slot.recompute:
            for name in pass_.used_buffers if names is None else pass_.used_buffers & {*names}:
                turn = found.setdefault(name, Turn())
                turn.slot, turn.segment = number, place
            continue
        for use in pass_.reads:
            if use.buffer in found and not found[use.buffer].is_rewritten:
                found[use.buffer].reads.append(LaterRead(number, place, use))
        for name in pass_.written_buffers & found.keys():
            found[name].is_rewritten = True
    return found

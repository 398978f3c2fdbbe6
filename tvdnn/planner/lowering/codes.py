"""Codes that passes leave beside what they write, for later uses that need no more."""

from collections.abc import Iterable, Iterator

from ...graph import Form, Graph, Pass
from ...graph.dataflow import Producers, producers
from ..ir.plan import Bridge, Segment


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

"""Rounded codes: the maps that lossy codecs may store between forward and backward.

Forward never reads rounded values, and no map is made again from them. A pass of backward that asks
for signs takes the exact bits, which are encoded beside. The gradient of the loss reads exact
values: it reads few, and every other gradient would have its error.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from ...graph import (
    BITS,
    FP8,
    FP10,
    FP16,
    Direction,
    Form,
    Graph,
    Kind,
    Need,
    Use,
    in_form,
    may_rest_in,
)
from ..ir.plan import Bridge, Segment
from .codes import Encoded

# Relative RMS errors of rounding values that are spread evenly over an octave, by mantissas of 3, 4
# and 10 bits. The error of a weight's gradient is about that of the map that it is made of: 2.8%,
# 1.4% and 0.02% on AlexNet(4) of an eighth of its channels (CPU, 2026-11-26).
ROUNDING: Final[Mapping[Form, float]] = {FP8: 0.0236, FP10: 0.0118, FP16: 0.000185}


def lossy_forms(graph: Graph, limit: float) -> dict[str, tuple[Form, ...]]:
    """By map, the lossy codecs of which gradients may have errors within `limit`.

    The smallest code comes first. Each is smaller than the map, with the bits that go beside it.
    """
    known = [form for form in ROUNDING if ROUNDING[form] <= limit]
    found: dict[str, tuple[Form, ...]] = {}
    for name, beside in _roundable(graph):
        buffer = graph.buffers[name]
        of_bits = in_form(buffer, BITS).nbytes if beside else 0
        found[name] = tuple(
            form
            for form in known
            if may_rest_in(buffer, form) and in_form(buffer, form).nbytes + of_bits < buffer.nbytes
        )
    return {name: forms for name, forms in found.items() if forms}


def forms_beside(graph: Graph, buffer: str, form: Form) -> tuple[Form, ...]:
    """A lossy form of a map, and the exact bits if a pass of backward asks for signs."""
    backward = (each for each in graph.passes if each.direction is not Direction.FORWARD)
    uses = [use for pass_ in backward for use in pass_.reads if use.buffer == buffer]
    return (form, BITS) if any(BITS in use.forms for use in uses) else (form,)


def read_by_the_loss(graph: Graph) -> set[str]:
    """The buffers of which a pass makes a gradient without another one."""
    found = set[str]()
    for pass_ in graph.passes:
        kinds = {graph.buffers[name].kind for name in pass_.read_buffers}
        written = {graph.buffers[name].kind for name in pass_.written_buffers}
        if Kind.GRAD in written and Kind.GRAD not in kinds:
            found |= pass_.read_buffers
    return found


def _roundable(graph: Graph) -> Iterator[tuple[str, bool]]:
    """The maps whose values backward alone may read rounded, and whether it asks for signs too."""
    exact = {*graph.outputs, *read_by_the_loss(graph)}
    forward: set[str] = set()
    uses: dict[str, list[Use]] = {}
    for pass_ in graph.passes:
        if pass_.direction is Direction.FORWARD:
            forward |= pass_.used_buffers
            continue
        exact |= pass_.written_buffers
        exact |= pass_.read_buffers if pass_.direction is Direction.UPDATE else frozenset()
        for use in pass_.reads:
            uses.setdefault(use.buffer, []).append(use)
    for name, found in uses.items():
        signs = [use for use in found if BITS in use.forms]
        others = [use for use in found if BITS not in use.forms]
        fits = not signs or may_rest_in(graph.buffers[name], BITS)
        values_alone = others and all(use.need is Need.VALUES for use in others)
        if name in forward - exact and fits and values_alone:
            yield name, bool(signs)


def rounded_between(
    graph: Graph, segments: Iterable[Segment], rounded: Collection[Encoded], left: Iterable[Bridge]
) -> Iterator[Bridge]:
    """The bridges of rounded maps, from their last use in forward to the first read of values.

    `left` are the codes that passes leave: a read of signs takes one, or bits encoded here. A map
    stays exact of which a recompute behind its last use in forward reads values.
    """
    has_code = {bridge.buffer for bridge in left}
    names, number = {each.buffer for each in rounded}, -1
    last: dict[str, tuple[int, int]] = {}  # slot and segment of the last use in forward
    reads: dict[str, list[tuple[int, int, bool]]] = {}  # slot, segment, whether it is of signs
    remade: dict[str, int] = {}  # the last slot of a recompute that uses it
    for place, segment in enumerate(segments):
        for slot in segment.slots:
            number += 1
            pass_ = graph.passes[slot.pass_index]
            if slot.recompute:
                remade |= dict.fromkeys(pass_.used_buffers & names, number)
            elif pass_.direction is Direction.FORWARD:
                last |= dict.fromkeys(pass_.used_buffers & names, (number, place))
            else:
                for use in pass_.reads:
                    if use.buffer in names and not (use.forms and use.buffer in has_code):
                        signs = BITS in use.forms
                        reads.setdefault(use.buffer, []).append((number, place, signs))
    for each in sorted(rounded):
        found, end = reads.get(each.buffer, []), last.get(each.buffer)
        if end and found and remade.get(each.buffer, -1) < end[0] and end[1] < found[0][1]:
            yield from _bridges(graph, each, end[0], found)


def _bridges(
    graph: Graph, each: Encoded, after: int, reads: Sequence[tuple[int, int, bool]]
) -> Iterator[Bridge]:
    """Rounded values of the last sections. All have bits, because a launch reads one form."""
    count = graph.buffers[each.buffer].num_sections
    of_signs = [slot for slot, _, signs in reads if signs]
    of_values = [slot for slot, _, signs in reads if not signs]
    for form, first, slots in ((each.form, each.first, of_values), (BITS, 0, of_signs)):
        if slots and of_values:
            sections = each.buffer, first, count - first
            yield Bridge(*sections, after, slots[0], slots[0], form=form, tier=None)

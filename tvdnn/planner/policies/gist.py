"""Gist (Jain et al., ISCA 2018): between its uses forward and backward, a map is stored encoded.

The paper's schedule builder encodes a map behind its last use in forward, and decodes it ahead of
its first use in backward. Its lossless codecs go by pairs of layers. Binarize is for a ReLU and its
max pooling: the ReLU's gradient needs one bit a value, and the pooling's gradient reads an argmax
code instead of its input. The graph has the code (`Policy.coded_pools`), the bits are a bridge.

For a ReLU or a pooling and its convolution, SSDC stores the values that are not zero, with indices.
`gist-lossless:ssdc=50` has room on the device for 50% of the values. Others spill to the host, so
that no value is lost. With `:bitmap=50` a bit a value stands for the indices. With `:tf32` maps
rest as TF32 codes, which need no zeros. A map stays raw whose code would be no smaller.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from ...errors import InputError
from ...graph import (
    BITMAP,
    BITS,
    SSDC,
    TF32,
    Buffer,
    Direction,
    Fact,
    Form,
    Graph,
    Kind,
    Use,
    in_form,
    may_rest_in,
    with_share,
)
from ..ir.plan import Bridge, Plan
from ..ir.schedule import Schedule
from ..lowering.codes import codes_left
from ..lowering.segments import Variant, segments
from ..problem import GraphProblem, Policy

LOSSLESS = "gist-lossless"
# Blocks of a layer, the longest first. A budget that does not hold these gets shorter ones.
VARIANTS = (Variant.KEEP, Variant.PERFORMANCE, Variant.MEMORY)
# A layer that reads a whole batch has a whole map decoded. By runs, VGG-16(64) in TF32 takes 1.8 GB
# instead of 2.5, and 28.5 ms instead of 27.0 (planned for an H200, 2026-11-26).
DECODING = VARIANTS[1:]


def gist(
    graph: Graph,
    name: str = LOSSLESS,
    variant: Variant = Variant.KEEP,
    form: Form | None = None,
    densities: Mapping[str, float] | None = None,
) -> Plan:
    """The plan that stores all maps encoded of which backward can take a code.

    Maps that backward needs for their signs alone are stored as bits, others in `form`, if any. A
    code of the maps in `densities` has room for that share of their values.
    """
    shares = densities or {}
    plan = Plan(name, segments(graph, {}, variant))
    left = tuple(codes_left(graph, plan.segments))
    has_bits = {bridge.buffer for bridge in left}
    encoded = {each.buffer: each for each in _encoded(graph, plan, form, shares)}
    bridges = tuple(e for e in encoded.values() if e.form != BITS or e.buffer not in has_bits)
    return replace(plan, bridges=left + bridges)


def _encoded(
    graph: Graph, plan: Plan, form: Form | None, shares: Mapping[str, float]
) -> Iterator[Bridge]:
    """The bridges over the turn from forward to backward, of maps that backward only reads."""
    last: dict[str, int] = {}  # by buffer, the slot of its last use in forward
    later: dict[str, list[tuple[int, Use]]] = {}  # by buffer, slots and uses behind forward
    overwritten: set[str] = set()
    for number, slot in enumerate(plan.slots):
        pass_ = graph.passes[slot.pass_index]
        if pass_.direction is Direction.FORWARD:
            last |= dict.fromkeys(pass_.used_buffers, number)
            continue
        overwritten |= pass_.written_buffers
        for use in pass_.reads:
            later.setdefault(use.buffer, []).append((number, use))
    for name in later:
        if name in overwritten or name in graph.outputs or name not in last:
            continue
        buffer, (first, _) = graph.buffers[name], later[name][0]
        signs = all(BITS in use.forms for _, use in later[name])
        of_values = with_share(form, shares[name]) if form and name in shares else form
        chosen = BITS if signs else of_values
        if chosen is not None and _pays(buffer, chosen):
            sections = 0, buffer.num_sections
            yield Bridge(name, *sections, last[name], first, first, form=chosen, tier=None)


def _pays(buffer: Buffer, form: Form) -> bool:
    """True for a map behind a ReLU that is smaller in this form."""
    if buffer.kind is not Kind.MAP or not may_rest_in(buffer, form):
        return False
    may_be_zero = form == BITS or Fact.NOT_NEGATIVE in buffer.facts
    return may_be_zero and in_form(buffer, form).nbytes < buffer.nbytes


def with_density(name: str) -> Policy | None:
    """The policy of a name that ends with a codec and a density in percent; None for other names.

    Raises InputError for a density above 100%.
    """
    found = re.fullmatch(rf"{LOSSLESS}(:fused)?:({SSDC}|{BITMAP})=(\d+)", name)
    if found is None:
        return None
    fused, codec, percent = found.groups()
    if int(percent) > 100:
        raise InputError(f"policy {name!r} has room for {percent}% of values; give at most 100")
    form = with_share(Form(codec), int(percent) / 100)
    return _policy(name, form, fused=fused is not None)


def _policy(name: str, form: Form | None, *, fused: bool) -> Policy:
    def plans(problem: GraphProblem) -> Iterator[Plan]:
        variants = VARIANTS if form is None else DECODING
        return (gist(problem.graph, name, variant, form) for variant in variants)

    def schedule(problem: GraphProblem) -> Schedule | None:
        return problem.first_that_fits(plans(problem))

    return Policy(name, schedule, plans, fused=fused, coded_pools=not fused)


def _policies() -> Iterator[Policy]:
    """On the paper's graph of single layers, and on fused ops."""
    for fused, form in product((False, True), (None, TF32)):
        suffix = ":fused" * fused + (f":{form}" if form else "")
        yield _policy(LOSSLESS + suffix, form, fused=fused)


POLICIES = tuple(_policies())

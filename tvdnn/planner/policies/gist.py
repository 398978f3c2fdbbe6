"""Gist (Jain et al., ISCA 2018): between its uses forward and backward, a map is stored encoded.

The paper's schedule builder encodes a map behind its last use in forward, and decodes it ahead of
its first use in backward. Its lossless codecs go by pairs of layers. Binarize is for a ReLU and its
max pooling: the ReLU's gradient needs one bit a value, and the pooling's gradient reads an argmax
code instead of its input. The graph has the code (`Policy.coded_pools`), the bits are a bridge.

For a ReLU or a pooling and its convolution, SSDC stores the values that are not zero, with indices.
`gist-lossless:ssdc=50` has room on the device for 50% of the values. Others spill to the host, so
that no value is lost. With `:bitmap=50` a bit a value stands for the indices. With `:tf32` maps
rest as TF32 codes, which need no zeros. A map stays raw whose code would be no smaller.

`gist-lossy:fp16`, `:fp10` and `:fp8` are delayed precision reduction. Forward reads exact values.
All other maps of which backward reads values are stored rounded, and a ReLU's gradient takes the
bits of a rounded map beside. The loss's gradient reads exact values: it reads few, and every other
gradient would have its error. With `:ssdc=20` or `:bitmap=20` behind, a map behind a ReLU is stored
exactly where that code is the smaller one.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ...errors import InputError
from ...graph import (
    BITMAP,
    BITS,
    FP8,
    FP10,
    FP16,
    SSDC,
    TF32,
    Buffer,
    Fact,
    Form,
    Graph,
    Kind,
    Need,
    Use,
    in_form,
    may_rest_in,
    with_share,
)
from ..ir.plan import Bridge, Plan
from ..ir.schedule import Schedule
from ..lowering.codes import codes_left, turns_of
from ..lowering.rounded_codes import read_by_the_loss
from ..lowering.segments import Variant, segments
from ..problem import GraphProblem, Policy

LOSSLESS, LOSSY = "gist-lossless", "gist-lossy"
LOSSY_FORMS: Final = (FP16, FP10, FP8)
# Blocks of a layer, the longest first. A budget that does not hold these gets shorter ones.
VARIANTS = (Variant.KEEP, Variant.PERFORMANCE, Variant.MEMORY)
# A layer that reads a whole batch has a whole map decoded. By runs, VGG-16(64) in TF32 takes 1.8 GB
# instead of 2.5, and 28.5 ms instead of 27.0 (planned for an H200, 2026-11-26).
DECODING = VARIANTS[1:]


@dataclass(frozen=True, slots=True)
class Codes:
    """The codes in which maps are stored whose values backward reads."""

    exact: Form | None = None  # of maps behind a ReLU
    rounded: Form | None = None  # of all maps
    # By map, the share of its values for which an exact code has room, else as the form says.
    densities: Mapping[str, float] = field(default_factory=dict)

    def exact_of(self, buffer: Buffer) -> Form | None:
        """The exact code of a map, None where it has none that is smaller than the map."""
        if self.exact is None:
            return None
        share = self.densities.get(buffer.name)
        form = self.exact if share is None else with_share(self.exact, share)
        return form if _pays(buffer, form) else None

    def rounded_of(self, buffer: Buffer) -> Form | None:
        """The lossy code of a map, None where it has none."""
        form = self.rounded
        return form if form is not None and may_rest_in(buffer, form) else None


NO_CODES: Final = Codes()


def gist(
    graph: Graph, name: str = LOSSLESS, variant: Variant = Variant.KEEP, codes: Codes = NO_CODES
) -> Plan:
    """The plan that stores all maps encoded of which backward can take a code.

    Maps that backward needs for their signs alone are stored as bits, others in `codes`.
    """
    plan = Plan(name, segments(graph, {}, variant))
    left = tuple(codes_left(graph, plan.segments))
    has_bits = {bridge.buffer for bridge in left}
    encoded = _encoded(graph, plan, codes)
    bridges = tuple(e for e in encoded if e.form != BITS or e.buffer not in has_bits)
    return replace(plan, bridges=left + bridges)


def _encoded(graph: Graph, plan: Plan, codes: Codes) -> Iterator[Bridge]:
    """The bridges over the turn from forward to backward, of maps that backward only reads."""
    exact = read_by_the_loss(graph)
    turns = [each for each in turns_of(graph, plan.segments).items() if each[1].reads]
    for name, turn in sorted(turns, key=lambda each: each[1].reads[0].slot):
        uses = [(read.slot, read.use) for read in turn.reads]
        if turn.is_rewritten or name in graph.outputs:
            continue
        buffer = graph.buffers[name]
        rounded = None if name in exact else codes.rounded_of(buffer)
        for form, needed_by in _forms(buffer, uses, codes.exact_of(buffer), rounded):
            sections = 0, buffer.num_sections
            yield Bridge(name, *sections, turn.slot, needed_by, needed_by, form=form, tier=None)


def _forms(
    buffer: Buffer, uses: list[tuple[int, Use]], exact: Form | None, rounded: Form | None
) -> Iterator[tuple[Form, int]]:
    """The forms in which a map is stored, each with the slot of the first use that wants it."""
    of_signs = [slot for slot, use in uses if BITS in use.forms]
    others = [slot for slot, use in uses if BITS not in use.forms]
    if not others:
        if _pays(buffer, BITS):
            yield BITS, of_signs[0]
        return
    values_alone = all(use.need is Need.VALUES for _, use in uses if BITS not in use.forms)
    if rounded is not None and values_alone:
        forms = (rounded, BITS) if of_signs else (rounded,)
        smallest = in_form(buffer, exact).nbytes if exact is not None else buffer.nbytes
        if sum(in_form(buffer, form).nbytes for form in forms) < smallest:
            yield rounded, others[0]
            if of_signs:
                yield BITS, of_signs[0]
            return
    if exact is not None:
        yield exact, uses[0][0]


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
    lossy = "|".join(map(str, LOSSY_FORMS))
    systems = rf"{LOSSLESS}(?::fused)?|{LOSSY}(?::fused)?:(?P<rounded>{lossy})"
    found = re.fullmatch(rf"(?:{systems}):(?P<codec>{SSDC}|{BITMAP})=(?P<percent>\d+)", name)
    if found is None:
        return None
    percent, rounded = int(found["percent"]), found["rounded"]
    if percent > 100:
        raise InputError(f"policy {name!r} has room for {percent}% of values; give at most 100")
    exact = with_share(Form(found["codec"]), percent / 100)
    return _policy(name, Codes(exact, Form(rounded) if rounded else None), fused=":fused" in name)


def _policy(name: str, codes: Codes, *, fused: bool) -> Policy:
    def plans(problem: GraphProblem) -> Iterator[Plan]:
        variants = VARIANTS if codes == NO_CODES else DECODING
        return (gist(problem.graph, name, variant, codes) for variant in variants)

    def schedule(problem: GraphProblem) -> Schedule | None:
        return problem.first_that_fits(plans(problem))

    lossy = codes.rounded is not None
    return Policy(name, schedule, plans, fused=fused, coded_pools=not fused, lossy=lossy)


def _policies() -> Iterator[Policy]:
    """On the paper's graph of single layers, and on fused ops."""
    for fused in (False, True):
        graph = ":fused" * fused
        yield _policy(LOSSLESS + graph, NO_CODES, fused=fused)
        yield _policy(f"{LOSSLESS}{graph}:{TF32}", Codes(TF32), fused=fused)
        for form in LOSSY_FORMS:
            yield _policy(f"{LOSSY}{graph}:{form}", Codes(rounded=form), fused=fused)


POLICIES = tuple(_policies())

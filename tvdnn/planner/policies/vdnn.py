"""vDNN (Rhu et al., MICRO 2016): offload layers' inputs, prefetch them in a sliding window.

The unit is a layer's input X, offloaded during the layer's forward. `all` moves X of every
feature-extraction layer, `conv` that of convolutions only; the classifier's maps never move. In
backward, each layer looks back for the nearest map that is still away, no further than the next
convolution, and fetches it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ...graph import Direction, Graph
from ..ir.plan import Plan, Transfer
from ..lowering.segments import Variant, segments

# The traits, in `Graph.vdnn_traits`, of ops whose inputs the two policies offload.
CONV = frozenset({"conv"})
ALL = CONV | {"all"}


@dataclass(frozen=True, slots=True)
class _Slots:
    """The slots that touch each buffer forward and backward, and each op's first one backward."""

    forward: Mapping[str, list[int]]
    backward: Mapping[str, list[int]]
    starts: Mapping[str, int]


def vdnn(
    graph: Graph,
    traits: frozenset[str],
    *,
    name: str,
    default: Variant,
    variants: Mapping[int, Variant] | None = None,
    sync: bool = False,
) -> Plan:
    """The plan that offloads the inputs of ops of these vDNN traits."""
    plan = Plan(name, segments(graph, variants or {}, default))
    slots = _slots(graph, plan)
    moved = moved_inputs(graph, traits, slots)
    opens = _windows(graph, moved, slots)
    transfers = tuple(
        Transfer(
            buffer,
            0,
            graph.buffers[buffer].num_sections,
            offload_after=slots.forward[buffer][-1],
            needed_by=slots.backward[buffer][0],
            earliest_prefetch=opens.get(op, slots.backward[buffer][0]),
        )
        for op, buffer in moved.items()
    )
    reasons = {buffer: f"input of {op}" for op, buffer in moved.items()}
    return Plan(name, plan.segments, transfers, sync=sync, reasons=reasons)


def _slots(graph: Graph, plan: Plan) -> _Slots:
    forward: dict[str, list[int]] = {}
    backward: dict[str, list[int]] = {}
    starts: dict[str, int] = {}
    for number, slot in enumerate(plan.slots):
        pass_ = graph.passes[slot.pass_index]
        side = forward if pass_.direction is Direction.FORWARD else backward
        if pass_.direction is Direction.BACKWARD:
            starts.setdefault(pass_.op, number)
        for use in (*pass_.reads, *pass_.writes):
            side.setdefault(use.buffer, []).append(number)
    return _Slots(forward, backward, starts)


def moved_inputs(graph: Graph, traits: frozenset[str], slots: _Slots) -> dict[str, str]:
    """Buffers to move, by the op that offloads each: the last that takes it as its input."""
    inputs, outputs = input_buffers(graph), frozenset(graph.outputs)
    owner: dict[str, str] = {}
    for op in graph.network.ops:
        buffer = inputs.get(op.name, "")
        takes = graph.vdnn_traits.get(op.name) in traits
        if takes and buffer in slots.backward and buffer not in outputs:
            owner[buffer] = op.name
    return {op: buffer for buffer, op in owner.items()}


def input_buffers(graph: Graph) -> dict[str, str]:
    """By op, the buffer that its forward pass reads first."""
    reading = (p for p in graph.passes if p.role == "forward" and p.reads)
    inputs: dict[str, str] = {}
    for pass_ in reading:
        inputs.setdefault(pass_.op, pass_.reads[0].buffer)
    return inputs


def _windows(graph: Graph, moved: Mapping[str, str], slots: _Slots) -> dict[str, int]:
    """The slot at which each op's input may be fetched: vDNN's search back from a layer."""
    ops = graph.network.ops
    opens: dict[str, int] = {}
    for number in reversed(range(len(ops))):
        if ops[number].name not in slots.starts:
            continue
        for candidate in reversed(ops[:number]):
            if candidate.name in moved and candidate.name not in opens:
                opens[candidate.name] = slots.starts[ops[number].name]
                break
            if graph.vdnn_traits.get(candidate.name) in CONV:
                break
    return opens

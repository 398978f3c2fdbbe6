"""vDNN (Rhu et al., MICRO 2016): offload layers' inputs, prefetch them in a sliding window.

The unit is a layer's input X, offloaded during the layer's forward. `all` moves X of every
feature-extraction layer, `conv` that of convolutions only; the classifier's maps never move. In
backward, each layer looks back for the nearest map that is still away, no further than the next
convolution, and fetches it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from ...graph import Direction, Graph
from ..ir.plan import Bridge, Plan
from ..ir.schedule import Schedule
from ..lowering.floor import floor_lower_bound
from ..lowering.segments import Variant, pass_groups, segments
from ..problem import GraphProblem, Policy
from .keep import keep

# The traits, in `Graph.vdnn_traits`, of ops whose inputs the two policies offload.
CONV = frozenset({"conv"})
ALL = CONV | {"all"}

_KINDS = {"vdnn-all": ALL, "vdnn-conv": CONV}
_VARIANTS = {"m": Variant.MEMORY, "p": Variant.PERFORMANCE}


class _Slots:
    """The slots that touch each buffer forward and backward, and each op's first one backward."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self.forward: dict[str, list[int]] = {}
        self.backward: dict[str, list[int]] = {}
        self.starts: dict[str, int] = {}
        for number, slot in enumerate(plan.slots):
            pass_ = graph.passes[slot.pass_index]
            forward = pass_.direction is Direction.FORWARD
            if pass_.direction is Direction.BACKWARD:
                self.starts.setdefault(pass_.op, number)
            for name in pass_.used_buffers:
                (self.forward if forward else self.backward).setdefault(name, []).append(number)


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
    plan = Plan(name, segments(graph, variants or {}, default), sync=sync)
    slots = _Slots(graph, plan)
    inputs = _offloaded_inputs(graph, traits, slots)
    earliest = _windows(graph, inputs, slots)
    bridges = tuple(
        Bridge(
            buffer,
            0,
            graph.buffers[buffer].num_sections,
            after=slots.forward[buffer][-1],
            needed_by=slots.backward[buffer][0],
            earliest_prefetch=earliest.get(op, slots.backward[buffer][0]),
        )
        for op, buffer in inputs.items()
    )
    reasons = {buffer: f"input of {op}" for op, buffer in inputs.items()}
    return replace(plan, bridges=bridges, reasons=reasons)


def _offloaded_inputs(graph: Graph, traits: frozenset[str], slots: _Slots) -> dict[str, str]:
    """Buffers to offload, by the op that offloads each: the last that takes it as its input."""
    inputs: dict[str, str] = {}  # by op, the buffer that its forward pass reads first
    for pass_ in graph.passes:
        if pass_.role == "forward" and pass_.reads:
            inputs.setdefault(pass_.op, pass_.reads[0].buffer)
    owner: dict[str, str] = {}
    for op in graph.network.ops:
        buffer = inputs.get(op.name, "")
        takes = graph.vdnn_traits.get(op.name) in traits
        if takes and buffer in slots.backward and buffer not in graph.outputs:
            owner[buffer] = op.name
    return {op: buffer for buffer, op in owner.items()}


def _windows(graph: Graph, inputs: Mapping[str, str], slots: _Slots) -> dict[str, int]:
    """The slot at which each op's input may be fetched: vDNN's search back from a layer."""
    ops = graph.network.ops
    earliest: dict[str, int] = {}
    for number in reversed(range(len(ops))):
        if ops[number].name not in slots.starts:
            continue
        for candidate in reversed(ops[:number]):
            if candidate.name in inputs and candidate.name not in earliest:
                earliest[candidate.name] = slots.starts[ops[number].name]
                break
            if graph.vdnn_traits.get(candidate.name) in CONV:
                break
    return earliest


def _dynamic(graph: Graph, policy: str, *, sync: bool) -> Iterator[Plan]:
    """vDNN's dynamic policy: its trials, fastest first, and last its test of trainability.

    The paper makes that test first. Whether it passes is the same when it comes last.
    """
    yield keep(graph)
    for kinds in (CONV, ALL):
        yield vdnn(graph, kinds, name=policy, default=Variant.PERFORMANCE, sync=sync)
    for kinds in (CONV, ALL):
        yield from _downgrades(graph, kinds, policy, sync)
    for kinds in (CONV, ALL):
        yield vdnn(graph, kinds, name=policy, default=Variant.MEMORY, sync=sync)


def _downgrades(graph: Graph, kinds: frozenset[str], name: str, sync: bool) -> Iterator[Plan]:
    """Plans that give the layer which sets the floor less workspace, layer after layer."""
    groups = reversed([*enumerate(pass_groups(graph))])  # of passes of one name the first counts
    layers = {graph.passes[index].name: number for number, group in groups for index in group}
    default, variants = Variant.PERFORMANCE, dict[int, Variant]()
    while True:
        plan = vdnn(graph, kinds, name=name, default=default, variants=variants, sync=sync)
        if variants:
            yield plan
        largest = floor_lower_bound(graph, plan)[1].rsplit(" [", 1)[0]
        if largest not in layers or layers[largest] in variants:
            return
        variants[layers[largest]] = Variant.MEMORY


def _policy(name: str, plans: Callable[[Graph], Iterator[Plan]]) -> Policy:
    """The policy that takes the first of its plans that fits."""

    def schedule(problem: GraphProblem) -> Schedule | None:
        return problem.first_that_fits(plans(problem.graph))

    return Policy(name, schedule, lambda problem: plans(problem.graph), fused=False)


def _policies() -> Iterator[Policy]:
    """By the layers of the paper: each set of them, in two variants, and the dynamic policy."""
    for sync in (False, True):
        suffix = ":sync" * sync
        for letter, variant in {"": Variant.PERFORMANCE, **_VARIANTS}.items():
            for base, traits in _KINDS.items():
                name = f"{base}:{letter}{suffix}" if letter else base + suffix
                plan = partial(vdnn, traits=traits, name=name, default=variant, sync=sync)
                yield _policy(name, partial(_alone, plan))
        name = f"vdnn-dyn{suffix}"
        yield _policy(name, partial(_dynamic, policy=name, sync=sync))


def _alone(plan: Callable[[Graph], Plan], graph: Graph) -> Iterator[Plan]:
    yield plan(graph)


POLICIES = tuple(_policies())

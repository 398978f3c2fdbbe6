"""Rounding check: the errors of gradients by rounded maps, and the maps that cause them."""

from collections import Counter
from collections.abc import Collection

from torch import Tensor

from ..graph import Graph, Op
from ..runtime.probe_calls import GRAD_BIAS, SummedSquares
from .gradient_probe import GradientProbe, ProbedStep
from .rounding_search import Errors, RoundingSearch, Verdict, disturbed, worst_of


def judge(probe: GradientProbe, step: ProbedStep, limit: float) -> Verdict | None:
    """Measure the gradients of a step beside exact ones.

    Over the limit, the maps are found that cause it. None where a label is no class: such a step
    has no gradients.
    """
    graph, maps = step.runner.schedule.graph, step.runner.schedule.plan.rounded
    without = biases_without_effect(graph)
    squares = SummedSquares(set(without.values()))
    with probe.unchanged():
        if not probe.run(step, exact=maps, squares=squares if without else None):
            return None
        exact = dict(probe.gradients(step))
        scales = {name: _rms(each) for name, each in exact.items()}
        roots = squares.roots()
        scales |= {name: roots[op] for name, op in without.items() if op in roots}

        def errors_of(rounded: Collection[str]) -> Errors:
            probe.run(step, exact=maps.difference(rounded))
            found = probe.gradients(step)
            return {name: _share(_rms(each - exact[name]), scales[name]) for name, each in found}

        errors = errors_of(maps)
        if worst_of(errors)[0] <= limit:
            return Verdict(errors)
        search = RoundingSearch(errors_of, disturbed(graph, maps), limit)
        search.run(_in_order(graph, maps), errors)
    return Verdict(errors, search.dropped, 2 + search.probes)


def biases_without_effect(graph: Graph) -> dict[str, str]:
    """The biases whose exact gradient is zero, each with its op.

    Behind the op all values of a channel are normalized together, which takes any bias away.
    """
    summed = {pass_.op for pass_ in graph.passes if pass_.role == GRAD_BIAS}
    readers: dict[str, list[Op]] = {}
    for op in graph.network.ops:
        for name in op.inputs:
            readers.setdefault(name, []).append(op)
    uses = Counter(name for op in graph.network.ops for name in op.params)
    return {
        op.params[1]: op.name
        for op in graph.network.ops
        if op.name in summed and uses[op.params[1]] == 1 and op.output in readers
        if op.output not in graph.network.outputs
        if all(_normalizes(graph, reader, op.output) for reader in readers[op.output])
    }


def _normalizes(graph: Graph, op: Op, value: str) -> bool:
    """Whether an op takes a value's means by channel away, and reads nothing else of it."""
    channels = graph.network.values[value].shape[-1]
    by_channel = op.attrs.get("training") or op.attrs.get("groups") == channels
    normalizes = "batch_norm" in op.kind or "group_norm" in op.kind
    return bool(normalizes and by_channel and op.inputs[0] == value and value not in op.inputs[1:])


def _in_order(graph: Graph, maps: Collection[str]) -> list[str]:
    """The maps in the order in which forward makes them."""
    return [name for name in graph.buffers if name in maps]


def _rms(tensor: Tensor) -> float:
    return tensor.double().square().mean().sqrt().item()


def _share(error: float, scale: float) -> float:
    """An error as a share of its scale. Of zeros there is none, but for no error."""
    return error / scale if scale else (0.0 if error == 0.0 else float("inf"))

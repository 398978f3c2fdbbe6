"""Rounding check: the errors of gradients by rounded maps, and the maps that cause them.

An error is a share of the exact gradient: the root of the mean square of one by that of the other.
The exact gradient of some parameters is zero but for rounding. Such is a bias ahead of a
normalization, or a scale of which every reader is one. Their errors are shares of what the gradient
adds up: of the root of the sum of the squares of these terms.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor

from ..graph import Direction, Graph, Kind
from ..runtime.probe_calls import SummedSquares
from ..runtime.runner import Runner
from .rounding_search import Errors, RoundingSearch, Verdict, disturbed, worst_of

# The share of its terms up to which a gradient is zero but for rounding. Rounding all terms to
# bfloat16, by up to 2^-9 each, leaves 0.2% at most if their errors are independent. A gradient of
# independent terms has about 100%.
ZERO = 0.01
LARGE = 0.05  # an error from which on, whatever the limit, a gradient may be zero but for rounding


class Probe(Protocol):
    """Runs one step of a runner again and again, for its gradients alone."""

    runner: Runner

    def unchanged(self) -> AbstractContextManager[None]:
        """A context for all runs, behind which the network is as before."""

    def run(self, exact: Collection[str], squares: SummedSquares | None = None) -> bool:
        """Run the step, in which the maps `exact` are not rounded; True if it has gradients.

        With `squares` these are summed meanwhile.
        """

    def gradients(self) -> Iterable[tuple[str, Tensor]]:
        """The gradients that the last run has left, on the host."""


def judge(probe: Probe, limit: float) -> Verdict | None:
    """Measure the gradients of a step beside exact ones.

    Over the limit, the maps are found that cause it. None for a step that has no gradients.
    """
    with probe.unchanged():
        return _Check(probe, limit).verdict()


class _Check:
    """One check of a step: its exact gradients, and the scales of their errors."""

    def __init__(self, probe: Probe, limit: float) -> None:
        self._probe, self._limit = probe, limit
        self._graph = probe.runner.schedule.graph
        self._maps = probe.runner.schedule.plan.rounded
        self._exact: dict[str, Tensor] = {}
        self._scales: dict[str, float] = {}
        self._probes = 0

    def verdict(self) -> Verdict | None:
        if not self._run(self._maps):
            return None
        self._exact = dict(self._probe.gradients())
        self._scales = {name: _rms(each) for name, each in self._exact.items()}
        absolute = self._absolute(self._maps)
        most = min(self._limit, LARGE)
        large = [name for name, error in self._shares(absolute).items() if not error <= most]
        self._scale_by_terms(large)
        errors = self._shares(absolute)
        if worst_of(errors)[0] <= self._limit:
            return Verdict(errors, probes=self._probes)
        alone = disturbed(self._graph, self._maps)
        search = RoundingSearch(self._errors_of, alone, self._limit)
        search.run(_in_order(self._graph, self._maps), errors)
        return Verdict(errors, search.dropped, self._probes)

    def _run(self, exact: Collection[str], squares: SummedSquares | None = None) -> bool:
        self._probes += 1
        return self._probe.run(exact, squares)

    def _errors_of(self, rounded: Collection[str]) -> Errors:
        return self._shares(self._absolute(rounded))

    def _absolute(self, rounded: Collection[str]) -> Errors:
        """The errors of a step in which these maps alone are rounded."""
        self._run(self._maps.difference(rounded))
        found = self._probe.gradients()
        return {name: _rms(each - self._exact[name]) for name, each in found}

    def _shares(self, absolute: Errors) -> Errors:
        return {name: _share(error, self._scales[name]) for name, error in absolute.items()}

    def _scale_by_terms(self, params: Iterable[str]) -> None:
        """Set the scales of the gradients among these that are zero but for rounding."""
        passes = summing_passes(self._graph, params)
        if not passes:
            return
        squares = SummedSquares(dict(passes.values()))
        self._run(self._maps, squares)
        roots = squares.roots()
        for name, (number, _) in passes.items():
            if self._scales[name] <= ZERO * roots[number]:
                self._scales[name] = roots[number]


def summing_passes(graph: Graph, params: Iterable[str]) -> Mapping[str, tuple[int, int]]:
    """Of parameters with a value a channel, the pass and the read of what their gradients sum.

    It is the first gradient with these channels that backward reads for the parameter's op. A scale
    sums its products with normalized values, whose mean square is 1.
    """
    found: dict[str, tuple[int, int]] = {}
    known = graph.network.params
    wanted = {name for name in params if name in known and len(known[name].shape) == 1}
    for index, pass_ in enumerate(graph.passes):
        if pass_.direction is Direction.BACKWARD:
            for name in wanted.intersection(graph.ops[pass_.op].params) - found.keys():
                (channels,) = graph.network.params[name].shape
                for number, use in enumerate(pass_.reads):
                    buffer = graph.buffers[use.buffer]
                    if buffer.kind is Kind.GRAD and use.width(buffer) == channels:
                        found.setdefault(name, (index, number))
    return found


def _in_order(graph: Graph, maps: Collection[str]) -> list[str]:
    """The maps in the order in which forward makes them."""
    return [name for name in graph.buffers if name in maps]


def _rms(tensor: Tensor) -> float:
    return tensor.double().square().mean().sqrt().item()


def _share(error: float, scale: float) -> float:
    """An error as a share of its scale. Of zeros there is none, but for no error."""
    return error / scale if scale else (0.0 if error == 0.0 else float("inf"))

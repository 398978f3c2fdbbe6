"""Lower bound on the time of a step inside a budget: a relaxation, solved as a linear program.

The bound asks for memory at one time only, the boundary between forward and backward. Each byte of
the maps that backward reads is then on the device, on the host, or recomputed later. Bytes on the
host are offloaded during forward and prefetched during backward, each at the rate of a link whose
other direction is idle. A recompute costs backward the passes that write the map, with their
operands at hand. Every launch runs as fast as in the best split of the batch.

No schedule that runs forward before backward takes less time. Gradients and workspace at other
times may keep every schedule above the bound.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from ...graph import Direction, Graph, Kind
from ..ir.costs import Costs
from ..ir.plan import HOST

# Kinds whose buffers hold what forward leaves to backward.
MAPS = (Kind.INPUT, Kind.MAP, Kind.AUX)
# Price of a recompute without gain, as a share of its seconds.
EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class LowerBound:
    """Seconds of a step that no schedule beats."""

    step_s: float
    compute_s: float  # of all passes, once each
    offloaded_nbytes: float
    recompute_s: float


def lower_bound(
    graph: Graph,
    costs: Costs,
    *,
    budget: int | None = None,
    host_budget: int | None = None,
    recompute: bool = True,
) -> LowerBound | None:
    """The lower bound of a graph on a machine; None where forward's maps exceed both budgets.

    Budgets are in bytes. Without `recompute` no map may be recomputed, as under vDNN's policies.
    """
    forward_s, backward_s = _seconds(graph, costs)
    nbytes = _kept_nbytes(graph)
    excess = 0 if budget is None else sum(nbytes.values()) - (budget - graph.fixed_nbytes)
    if excess <= 0:
        return LowerBound(forward_s + backward_s, forward_s + backward_s, 0.0, 0.0)
    candidates = list(_recomputes(graph, costs, nbytes)) if recompute else []
    return _solve(costs, forward_s, backward_s, excess, candidates, host_budget)


def _solve(
    costs: Costs,
    forward_s: float,
    backward_s: float,
    excess: int,
    candidates: list[tuple[float, float]],
    host_budget: int | None,
) -> LowerBound | None:
    """Solve the linear program.

    Its variables are the seconds of both phases, the offloaded bytes, and the share of each
    candidate that is recomputed. Bytes are in units of `excess`, seconds in units of all passes, so
    that numbers are near one.
    """
    seconds, gained = np.array(candidates or [(0.0, 0.0)]).T
    unit_s = forward_s + backward_s
    link = costs.links[HOST]
    out_s, in_s = (excess / rate / unit_s for rate in (link.out, link.back))
    none = np.zeros_like(seconds)
    rows = [
        (-1.0, 0.0, out_s, *none),
        (0.0, -1.0, in_s, *none),
        (0.0, -1.0, 0.0, *(seconds / unit_s)),
        (0.0, 0.0, -1.0, *(-gained / excess)),
    ]
    most = 1.0 if host_budget is None else min(1.0, host_budget / excess)
    found = linprog(
        (1.0, 1.0, 0.0, *(EPSILON * seconds / unit_s)),  # recomputes without gain cost a little
        A_ub=rows,
        b_ub=(0.0, 0.0, -backward_s / unit_s, -1.0),
        bounds=[(forward_s / unit_s, None), (0.0, None), (0.0, most), *[(0.0, 1.0)] * len(none)],
    )
    if not found.success:
        return None
    recompute_s = float(seconds @ found.x[3:])
    step_s = float(found.x[0] + found.x[1]) * unit_s
    return LowerBound(step_s, unit_s, float(found.x[2]) * excess, recompute_s)


def _seconds(graph: Graph, costs: Costs) -> tuple[float, float]:
    """Seconds of all forward passes, and of all other passes, once each."""
    seconds = {True: 0.0, False: 0.0}
    for pass_ in graph.passes:
        seconds[pass_.direction is Direction.FORWARD] += costs.min_pass_s(pass_)
    return seconds[True], seconds[False]


def _kept_nbytes(graph: Graph) -> Mapping[str, int]:
    """By name, the bytes of the maps that forward or the caller writes and backward reads."""
    before, after = {*graph.inputs}, set[str]()
    for pass_ in graph.passes:
        if pass_.direction is Direction.FORWARD:
            before |= pass_.written_buffers
        else:
            after |= pass_.read_buffers
    both = before & after
    return {
        name: buffer.nbytes
        for name, buffer in graph.buffers.items()
        if name in both and buffer.kind in MAPS
    }


def _recomputes(
    graph: Graph, costs: Costs, nbytes: Mapping[str, int]
) -> Iterator[tuple[float, float]]:
    """By forward pass that may be recomputed: its seconds, and the bytes of kept maps it writes."""
    for pass_ in graph.passes:
        gained = sum(
            use.nbytes(graph.buffers[use.buffer]) for use in pass_.writes if use.buffer in nbytes
        )
        forward = pass_.direction is Direction.FORWARD
        if gained and forward and not pass_.effects and not pass_.updates:
            yield costs.min_pass_s(pass_), gained

"""The least time that a step can take inside a budget: a relaxation, solved as a linear program.

It asks for memory at one moment alone, the turn: all of forward has run, nothing of backward. Of
the maps that backward reads, each byte is then on the device, on the host or to be made again. What
is on the host left during forward and returns during backward, each way at the rate that the link
has with the other way idle; what is made again costs backward the passes that write it, with all
that they read at hand. Every launch runs as fast as it does in any cut of the batch. So no schedule
that runs forward before backward can take less time, whatever its order, blocks and copies; the
bytes of gradients and workspace at other moments may keep all from reaching it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from ...graph import Direction, Graph, Kind, Pass
from ..ir.costs import Costs

MAPS = (Kind.INPUT, Kind.MAP, Kind.AUX)
COMPUTE, LINK, MEMORY = "compute", "link", "memory"
SLIGHT = 1e-6  # of the step: less is the solver's rounding


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds of a step that no schedule beats.

    Of these `compute_s` are the passes, once each. `offloaded_nbytes` leave, and `remade_s` go to
    making maps again. `binds` is what more of would lower it: "memory" that is not there, for which
    maps are made again, the "link", or "compute".
    """

    step_s: float
    compute_s: float
    offloaded_nbytes: float
    remade_s: float

    @property
    def binds(self) -> str:
        least = SLIGHT * self.step_s
        if self.remade_s > least:
            return MEMORY
        return LINK if self.step_s - self.compute_s > least else COMPUTE


def bound(
    graph: Graph,
    costs: Costs,
    *,
    budget: int | None = None,
    host_budget: int | None = None,
    remakes: bool = True,
) -> Bound | None:
    """The bound of a graph on a machine; None where not even the turn fits both budgets.

    Without `remakes` no map may be made again, as under vDNN's policies.
    """
    forward_s, backward_s = _seconds(graph, costs)
    nbytes = _kept(graph)
    excess = 0 if budget is None else sum(nbytes.values()) - (budget - graph.fixed_nbytes)
    if excess <= 0:
        return Bound(forward_s + backward_s, forward_s + backward_s, 0.0, 0.0)
    makers = list(_makers(graph, costs, nbytes)) if remakes else []
    return _relaxed(costs, forward_s, backward_s, excess, makers, host_budget)


def _relaxed(
    costs: Costs,
    forward_s: float,
    backward_s: float,
    excess: int,
    makers: list[tuple[float, float]],
    host_budget: int | None,
) -> Bound | None:
    """The linear program: variables are both halves' seconds, bytes out, and shares of makers.

    Bytes are counted in `excess`, seconds in those of all passes, so that numbers are about one.
    """
    seconds, gained = np.array(makers or [(0.0, 0.0)]).T
    unit_s = forward_s + backward_s
    out_s, in_s = (excess / rate / unit_s for rate in (costs.link.to_host, costs.link.to_device))
    none = np.zeros_like(seconds)
    rows = [
        (-1.0, 0.0, out_s, *none),
        (0.0, -1.0, in_s, *none),
        (0.0, -1.0, 0.0, *(seconds / unit_s)),
        (0.0, 0.0, -1.0, *(-gained / excess)),
    ]
    most = 1.0 if host_budget is None else min(1.0, host_budget / excess)
    found = linprog(
        (1.0, 1.0, 0.0, *(SLIGHT * seconds / unit_s)),  # nothing is made again in vain
        A_ub=rows,
        b_ub=(0.0, 0.0, -backward_s / unit_s, -1.0),
        bounds=[(forward_s / unit_s, None), (0.0, None), (0.0, most), *[(0.0, 1.0)] * len(none)],
    )
    if not found.success:
        return None
    remade_s = float(seconds @ found.x[3:])
    step_s = float(found.x[0] + found.x[1]) * unit_s
    return Bound(step_s, unit_s, float(found.x[2]) * excess, remade_s)


def _seconds(graph: Graph, costs: Costs) -> tuple[float, float]:
    """Seconds of all passes, once each: of forward, and of the rest."""
    halves = {True: 0.0, False: 0.0}
    for pass_ in graph.passes:
        halves[pass_.direction is Direction.FORWARD] += costs.min_pass_s(pass_)
    return halves[True], halves[False]


def _kept(graph: Graph) -> Mapping[str, int]:
    """Bytes of the maps, by name, that passes after the turn read of what there is before it."""
    before = {*graph.inputs}
    after = set[str]()
    for pass_ in graph.passes:
        if pass_.direction is Direction.FORWARD:
            before |= {use.buffer for use in pass_.writes}
        else:
            after |= {use.buffer for use in pass_.reads}
    both = before & after
    return {
        name: buffer.nbytes
        for name, buffer in graph.buffers.items()
        if name in both and buffer.kind in MAPS
    }


def _makers(graph: Graph, costs: Costs, nbytes: Mapping[str, int]) -> Iterator[tuple[float, float]]:
    """Seconds of each forward pass that may run again, and bytes of kept maps that it writes."""
    for pass_ in graph.passes:
        gained = sum(
            use.nbytes(graph.buffers[use.buffer]) for use in pass_.writes if use.buffer in nbytes
        )
        if gained and _may_run_again(pass_):
            yield costs.min_pass_s(pass_), gained


def _may_run_again(pass_: Pass) -> bool:
    forward = pass_.direction is Direction.FORWARD
    return forward and not pass_.effects and not pass_.updates

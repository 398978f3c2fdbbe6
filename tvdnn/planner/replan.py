"""Replanning: a plan made anew from costs that a measured step corrects."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Final

from ..errors import BudgetError, HostMemoryError
from ..graph import Form, Graph, Network
from ..graph.state import NO_CHANGES
from .ir.costs import Costs
from .ir.schedule import Schedule
from .ir.timeline import Timeline
from .make import Problem
from .timing.calibrate import CalibratedCosts, calibrate
from .timing.simulate import simulate

PLAIN: Final = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class ReplanRequest:
    """A schedule, the costs that predicted its step, and the step as measured.

    `policy`, `lead` and `host_budget` are those of the new schedule. Its device budget is that of
    the present one, and its arena may be `paged`. `lossy` are the codecs that may round maps in it.
    """

    schedule: Schedule
    costs: Costs
    measured: Timeline
    policy: str
    lead: int | None
    host_budget: int | None
    paged: bool = True
    lossy: Mapping[str, Form] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplanAnswer:
    """The corrected costs, and the schedule that is predicted to be faster, None where none is."""

    costs: CalibratedCosts
    schedule: Schedule | None


def replan(request: ReplanRequest) -> ReplanAnswer:
    """Correct the costs by the measured step and make the schedule anew within the same budgets."""
    present = request.schedule
    costs = calibrate(present, request.costs, request.measured)
    try:
        limits = present.budget_nbytes, request.host_budget, present.tiers
        problem = Problem(present.graph, costs, *limits, paged=request.paged, lossy=request.lossy)
        other = problem.schedule(request.policy, lead=request.lead)
    except (BudgetError, HostMemoryError):  # the floor may be higher with the corrected costs
        return ReplanAnswer(costs, None)
    faster = simulate(other, costs).step_s < simulate(present, costs).step_s
    return ReplanAnswer(costs, other if faster else None)


def sendable(graph: Graph) -> Graph:
    """The graph with plain data alone, which another process can unpickle without torch.

    Left out are modules and functions that only the engine calls; no plan depends on them.
    """
    return replace(
        graph,
        traced=_plain_network(graph.traced),
        network=_plain_network(graph.network),
        ops={name: replace(op, attrs=_plain_attrs(op.attrs)) for name, op in graph.ops.items()},
        passes=tuple(replace(pass_, attrs=_plain_attrs(pass_.attrs)) for pass_ in graph.passes),
    )


def _plain_network(network: Network) -> Network:
    ops = tuple(replace(op, attrs=_plain_attrs(op.attrs)) for op in network.ops)
    return replace(network, ops=ops, gather=itemgetter(0), changes=NO_CHANGES, formulas={})


def _plain_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in attrs.items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, (tuple, list, frozenset)):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(map(_is_plain, (*value.keys(), *value.values())))
    return type(value) in PLAIN


def _plain(value: Any) -> Any:
    """Plain data in Python's own types; torch.Size becomes a tuple."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return value

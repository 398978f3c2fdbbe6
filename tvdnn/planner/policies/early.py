"""early: of the maps that vDNN moves, only those move that are made first.

These maps are needed last. They lie on the host the longest, with the most time for their copies.
"""

from collections.abc import Iterator
from dataclasses import replace

from ...graph import Graph
from ..ir.plan import Plan
from ..ir.schedule import Schedule
from ..lowering.segments import Variant
from ..problem import GraphProblem, Policy
from .vdnn import ALL, vdnn


def early(graph: Graph) -> Plan:
    """The plan with the first half of vDNN's transfers, in the order of their offloads."""
    plan = vdnn(graph, ALL, name="early", default=Variant.MEMORY)
    transfers = sorted(plan.transfers, key=lambda transfer: transfer.offload_after)
    return replace(plan, transfers=tuple(transfers[: (len(transfers) + 1) // 2]))


def _plans(problem: GraphProblem) -> Iterator[Plan]:
    yield early(problem.graph)


def _schedule(problem: GraphProblem) -> Schedule | None:
    return problem.first_that_fits(_plans(problem))


POLICIES = (Policy("early", _schedule, leanest=_plans),)

"""keep: every map stays on the device until its last use. What lossless policies must equal."""

from ...graph import Direction, Graph
from ..ir.plan import Plan
from ..ir.schedule import Schedule
from ..lowering.codes import codes_left
from ..lowering.segments import Variant, segments
from ..problem import GraphProblem, Policy


def keep(graph: Graph) -> Plan:
    """The plan that moves nothing, and leaves all codes that passes can."""
    parts = segments(graph, {}, Variant.KEEP)
    return Plan("keep", parts, tuple(codes_left(graph, parts)))


def keep_schedule(problem: GraphProblem) -> Schedule | None:
    """keep's schedule, None where it has none within the budgets.

    Most often the maps that forward saves for backward are too large by themselves. No order is
    made of these.
    """
    arena = problem.budgets.arena
    if arena is not None and _saved_nbytes(problem.graph) > arena:
        return None
    return problem.lowered(keep(problem.graph))


def _saved_nbytes(graph: Graph) -> int:
    """Bytes that forward writes and that later passes only read."""
    forward = [pass_ for pass_ in graph.passes if pass_.direction is Direction.FORWARD]
    after = [pass_ for pass_ in graph.passes if pass_.direction is not Direction.FORWARD]
    saved = {name for pass_ in forward for name in pass_.written_buffers}
    saved &= {name for pass_ in after for name in pass_.read_buffers}
    saved -= {name for pass_ in after for name in pass_.written_buffers}
    return sum(graph.buffers[name].nbytes for name in saved)


POLICIES = (Policy("keep", keep_schedule, lambda problem: (keep(problem.graph),)),)

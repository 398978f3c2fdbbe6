"""A policy that rests every map in a code from its last read forward to its first one backward."""

from collections.abc import Iterator
from functools import partial

from tvdnn.graph import Direction, Form, Graph, Kind, may_rest_in
from tvdnn.planner.ir.plan import Bridge, Plan, Segment
from tvdnn.planner.ir.schedule import Schedule
from tvdnn.planner.lowering.segments import Variant, segments
from tvdnn.planner.problem import GraphProblem, Policy


def packing_plan(graph: Graph, form: Form, tier: str | None = None) -> Plan:
    """keep's order, with a code of all maps that may rest in this form."""
    parts = segments(graph, {}, Variant.KEEP)
    return Plan("packing", parts, tuple(_bridges(graph, parts, form, tier)))


def _bridges(
    graph: Graph, parts: tuple[Segment, ...], form: Form, tier: str | None
) -> Iterator[Bridge]:
    slots = [slot for segment in parts for slot in segment.slots]
    for name, buffer in graph.buffers.items():
        if buffer.kind is not Kind.MAP or not may_rest_in(buffer, form):
            continue
        uses = [
            (number, graph.passes[slot.pass_index])
            for number, slot in enumerate(slots)
            if name in graph.passes[slot.pass_index].used_buffers
        ]
        forward = [number for number, pass_ in uses if pass_.direction is Direction.FORWARD]
        later = [(number, pass_) for number, pass_ in uses if number > max(forward)]
        if later and name in later[0][1].read_buffers and name not in graph.outputs:
            sections, needed_by = (0, buffer.num_sections), later[0][0]
            yield Bridge(name, *sections, max(forward), needed_by, needed_by, form, tier)


def packing(form: Form, tier: str | None = None) -> Policy:
    """The policy that makes these plans."""
    plan = partial(packing_plan, form=form, tier=tier)

    def schedule(problem: GraphProblem) -> Schedule | None:
        return problem.lowered(plan(problem.graph))

    return Policy("packing", schedule, lambda problem: (plan(problem.graph),))

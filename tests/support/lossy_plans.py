"""Random legal plans with lossy codes, and plans in keep's order that round the same maps."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tests.support.plans import random_plan, some_straight
from tvdnn.graph import BITS, FP8, FP10, FP16, Direction, Form, Graph, Need, Pass, Use, may_rest_in
from tvdnn.planner.ir.plan import HOST, Bridge, Plan
from tvdnn.planner.policies.keep import keep

Uses = list[tuple[int, Pass, Use]]  # slot, pass and use of a buffer


def lossy_plans(graph: Graph, rng: random.Random) -> tuple[Plan, Plan]:
    """A random plan, and the plan in keep's order of which all passes read the same values.

    A map is rounded behind its last use in forward, for all uses in backward that read its values.
    """
    drawn = random_plan(graph, rng)
    forms = {
        name: rng.choice(fitting)
        for name, uses in _uses(graph, drawn).items()
        if (fitting := _forms(graph, name, uses)) and rng.random() < 0.7
    }
    others = tuple(each for each in drawn.bridges if each.buffer not in forms)
    bridges = (*others, *_rounding(graph, drawn, forms, rng))
    fork = random.Random()
    fork.setstate(rng.getstate())
    bridges = tuple(some_straight(graph, drawn.segments, bridges, fork))
    ordered = keep(graph)
    apart = tuple(each for each in ordered.bridges if each.buffer not in forms)
    return replace(drawn, bridges=bridges), replace(
        ordered, bridges=(*apart, *_rounding(graph, ordered, forms))
    )


def _uses(graph: Graph, plan: Plan) -> Mapping[str, Uses]:
    found: dict[str, Uses] = {}
    for number, slot in enumerate(plan.slots):
        pass_ = graph.passes[slot.pass_index]
        for use in (*pass_.reads, *pass_.writes):
            found.setdefault(use.buffer, []).append((number, pass_, use))
    again = [slot for slot in plan.slots if slot.recompute]
    remade = {name for slot in again for name in graph.passes[slot.pass_index].used_buffers}
    return {name: uses for name, uses in found.items() if name not in remade}


def _forms(graph: Graph, name: str, uses: Uses) -> list[Form]:
    """The forms in which a map may be rounded for all its uses in backward.

    In an order of its own, a pass of forward may come behind one of backward.
    """
    forward = [number for number, pass_, _ in uses if pass_.direction is Direction.FORWARD]
    later = [(pass_, use) for _, pass_, use in uses if pass_.direction is Direction.BACKWARD]
    numbers = [number for number, pass_, _ in uses if pass_.direction is not Direction.FORWARD]
    if not forward or not numbers or min(numbers) < max(forward) or name in graph.outputs:
        return []
    if len(later) != len(numbers) or any(name in pass_.written_buffers for pass_, _ in later):
        return []
    values = [use for _, use in later if BITS not in use.forms]
    if not values or any(use.need is not Need.VALUES or use.neighbour for use in values):
        return []
    return [form for form in (FP16, FP10, FP8) if may_rest_in(graph.buffers[name], form)]


def _rounding(
    graph: Graph, plan: Plan, forms: Mapping[str, Form], rng: random.Random | None = None
) -> Iterator[Bridge]:
    """Bridges by lossy codes, and by bits for uses that read signs."""
    uses = _uses(graph, plan)
    for name, form in forms.items():
        after = max(n for n, pass_, _ in uses[name] if pass_.direction is Direction.FORWARD)
        later = [(n, use) for n, pass_, use in uses[name] if pass_.direction is Direction.BACKWARD]
        sections = 0, graph.buffers[name].num_sections
        for its_form, numbers in (
            (form, [n for n, use in later if BITS not in use.forms]),
            (BITS, [n for n, use in later if BITS in use.forms]),
        ):
            if numbers:
                first = numbers[0]
                earliest = first if rng is None else rng.randint(0, first)
                tier = None if rng is None else rng.choice((None, None, HOST))
                yield Bridge(name, *sections, after, first, earliest, its_form, tier)

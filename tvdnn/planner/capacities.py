"""Capacities: how many values the heads of packed codes have room for, by the counts of steps.

A section with more values than its head holds costs time, because the others go to the host and
back, but no value is lost. Other capacities are another plan with the same bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from ..errors import HostMemoryError
from ..graph import SHARES, Form, Graph, capacity_of, is_packed
from .ir.budgets import Budgets
from .ir.costs import Costs
from .ir.plan import Bridge, Plan
from .ir.schedule import Schedule, Step
from .lowering.lower import lower_with_prefetch
from .timing.merge_syncs import merge_sync_points
from .verify.check import check

# 256ths of the values by which a head has more room than the most values counted. The density of a
# map's sections changes from step to step.
MARGIN: Final = 8


@dataclass(frozen=True, slots=True)
class CountedCode:
    """A section's packed code, made in one step of a schedule."""

    buffer: str
    section: int
    form: Form
    slot: int  # of the plan, behind which it is encoded
    values: int  # of the section
    capacity: int  # values for which its head has room


@dataclass(frozen=True, slots=True)
class CapacityRequest:
    """A schedule, and by count word the most values that a step counted.

    The new schedule has the present one's device budget, and `host_budget`.
    """

    schedule: Schedule
    costs: Costs
    counts: tuple[int, ...]
    host_budget: int | None


def counted_codes(schedule: Schedule) -> tuple[CountedCode, ...]:
    """The packed codes of a schedule by count word."""
    counted = sorted((each for each in schedule.steps if each.count_word >= 0), key=_word)
    return tuple(_counted(schedule.graph, step) for step in counted)


def _word(step: Step) -> int:
    return step.count_word


def _counted(graph: Graph, step: Step) -> CountedCode:
    head = step.writes[0]
    buffer = graph.buffers[head.buffer]
    section = head.start // buffer.section
    values = (head.stop - head.start) * prod(buffer.shape[1:])
    capacity = capacity_of(buffer, section, head.form)
    return CountedCode(head.buffer, section, head.form, step.slot, values, capacity)


def with_capacities(schedule: Schedule, counts: Sequence[int]) -> Plan:
    """The plan with room in its heads for these counts, and some more."""
    shares: dict[Bridge, int] = {}
    for code, count in zip(counted_codes(schedule), counts, strict=True):
        bridge = next(each for each in schedule.plan.bridges if _is_of(code, each))
        share = min(SHARES, -(-count * SHARES // code.values) + MARGIN)
        shares[bridge] = max(share, shares.get(bridge, 0))
    bridges = tuple(
        replace(each, form=each.form._replace(share=shares[each])) if each in shares else each
        for each in schedule.plan.bridges
    )
    return replace(schedule.plan, bridges=bridges, optimality=None)


def _is_of(code: CountedCode, bridge: Bridge) -> bool:
    found = bridge.buffer, bridge.form, bridge.after
    covers = bridge.first <= code.section < bridge.first + bridge.count
    return covers and is_packed(bridge.form) and found == (code.buffer, code.form, code.slot)


def replan_capacities(request: CapacityRequest) -> Schedule | None:
    """The checked schedule with room for the counts; None where it does not fit the budgets."""
    present = request.schedule
    plan = with_capacities(present, request.counts)
    if plan.bridges == present.plan.bridges:
        return None
    budgets = Budgets.of(present.graph, present.budget_nbytes, request.host_budget, present.tiers)
    try:
        schedule = lower_with_prefetch(present.graph, plan, request.costs, budgets)
    except HostMemoryError:
        return None
    if schedule is None:
        return None
    schedule = merge_sync_points(schedule, request.costs)
    check(schedule)
    return schedule

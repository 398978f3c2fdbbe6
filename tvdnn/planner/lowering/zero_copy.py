"""Zero copy: codes that leave the device encoded straight to the host, where that takes less."""

from dataclasses import replace

from ...graph import RAW, Graph, Need, codec_of
from ..ir.costs import Costs
from ..ir.plan import HOST, Bridge, Plan, transfer_nbytes
from .due_bridges import may_be_straight


def with_zero_copy(graph: Graph, plan: Plan, costs: Costs) -> Plan | None:
    """The plan with codes encoded straight to the host where launches lose less time by that.

    None where no code is. A map that is used raw or in its code before it is decoded stays as it
    is: the raw section would leave too early.
    """
    used: dict[str, list[int]] = {}
    for number, slot in enumerate(plan.slots):
        for name in graph.passes[slot.pass_index].used_buffers:
            used.setdefault(name, []).append(number)

    def straight(bridge: Bridge) -> bool:
        if bridge.zero_copy or not may_be_straight(bridge):
            return False
        between = (bridge.after < number < bridge.needed_by for number in used[bridge.buffer])
        decoded = codec_of(bridge.form).gives is Need.VALUES and not any(between)
        return decoded and saved_s(graph, bridge, costs) > 0

    bridges = tuple(
        replace(each, zero_copy=True) if straight(each) else each for each in plan.bridges
    )
    return replace(plan, bridges=bridges) if bridges != plan.bridges else None


def saved_s(graph: Graph, bridge: Bridge, costs: Costs) -> float:
    """Seconds of launches that the codes of a bridge save, encoded straight to the host."""
    buffer, sections = (
        graph.buffers[bridge.buffer],
        range(bridge.first, bridge.first + bridge.count),
    )
    bounds = (buffer.bounds(section) for section in sections)
    encoding_s = sum(
        costs.recode_s(buffer, stop - start, RAW, bridge.form) for start, stop in bounds
    )
    return encoding_s - costs.links[HOST].zero_copy_s(transfer_nbytes(graph, bridge))

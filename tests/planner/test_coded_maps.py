"""Maps that plans of `auto` encode between forward and backward: which, where, to what gain."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.support.lowered import lower
from tests.support.running import random_batches, train
from tvdnn.engine import training_graph
from tvdnn.graph import BITMAP, RAW, TF32, Direction, Graph
from tvdnn.optim import SGD
from tvdnn.planner.ir.costs import Costs, Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.plan import HOST
from tvdnn.planner.ir.schedule import Action, Schedule
from tvdnn.planner.joint.columns import Columns
from tvdnn.planner.joint.lp import JointLP
from tvdnn.planner.joint.orders import Order, orders
from tvdnn.planner.lowering.codes import Encoded, codable, codes_between, codes_left
from tvdnn.planner.lowering.segments import Variant, segments
from tvdnn.planner.make import make_schedule
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.verify.check import check

CLASSES, SIDE, BATCH = 4, 12, 8


def plain(*, dtype: str) -> tuple[nn.Module, Graph]:
    """Convolutions with ReLUs, one pooling, and no normalization: each map is dear to make."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in ((3, 8), (8, 8), (8, 8), (8, 8)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
    layers.insert(4, nn.MaxPool2d(2))
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * (SIDE // 2) ** 2, CLASSES))
    x = torch.empty(BATCH, 3, SIDE, SIDE)
    return net, training_graph(net, x, optimizer=SGD(momentum=0.9), sections=4, dtype=dtype)


def dear(graph: Graph) -> Roofline:
    """A machine that computes slowly beside its memory, and whose link is slow."""
    machine = load("H200")
    flops = {name: rate / 2000 for name, rate in machine.flops.items()}
    links = {HOST: replace(machine.links[HOST].scaled(1 / 50, 1 / 50), latency_s=0.0)}
    return Roofline(replace(machine, flops=flops, launch_s=0.0, links=links), graph.dtype)


def names_of(graph: Graph) -> dict[str, str]:
    return {name: form.codec for name, form in codable(graph)}


def test_maps_behind_a_relu_are_codable_and_pooled_ones_only_as_tf32() -> None:
    _, graph = plain(dtype="fp32")
    pooled = {
        name
        for pass_ in graph.passes
        if pass_.direction is Direction.FORWARD and "pool" in graph.ops[pass_.op].kind
        for name in pass_.written_buffers
    }
    assert pooled
    found = names_of(graph)
    assert found
    assert set(found.values()) == {BITMAP.codec}
    assert pooled.isdisjoint(found)
    _, graph = plain(dtype="tf32")
    assert TF32.codec in names_of(graph).values()


@pytest.mark.parametrize("first", [0, 2])
def test_a_map_is_encoded_from_its_last_forward_use_to_its_next_read(first: int) -> None:
    _, graph = plain(dtype="fp32")
    parts = segments(graph, {}, Variant.MEMORY)
    left = tuple(codes_left(graph, parts))
    slots = [slot.pass_index for part in parts for slot in part.slots]
    for name, form in codable(graph):
        users = [n for n, i in enumerate(slots) if name in graph.passes[i].used_buffers]
        forward = [n for n in users if graph.passes[slots[n]].direction is Direction.FORWARD]
        found = list(codes_between(graph, parts, [Encoded(name, first, form)], left))
        behind = [n for n in users if n not in forward]
        if not behind:
            assert not found
            continue
        (bridge,) = found
        assert (bridge.first, bridge.count) == (first, graph.buffers[name].num_sections - first)
        assert bridge.after == forward[-1]
        assert bridge.needed_by in behind
        assert bridge.tier is None
        assert bridge.form == form


def columns_with_codes(graph: Graph, costs: Costs) -> tuple[Order, Columns]:
    found = [(order, order.columns) for order in orders(graph, costs)]
    return next(each for each in found if each[1].coded)


def test_codes_save_time_where_makers_and_the_link_are_slow() -> None:
    _, graph = plain(dtype="tf32")
    order, columns = columns_with_codes(graph, dear(graph))
    limit = round(0.75 * order.skeleton.required.max())
    program = JointLP(columns, limit)
    least = program.solve()
    program.limit(limit, with_codes=False)
    without = program.solve()
    assert least is not None
    assert without is not None
    assert least.coded.max() > 0.01
    assert least.step_s < 0.98 * without.step_s


def budgeted(graph: Graph, share: float) -> Schedule:
    costs = dear(graph)
    kept = make_schedule(graph, costs, policy="keep")
    budget = graph.fixed_nbytes + round(share * kept.arena_nbytes)
    return make_schedule(graph, costs, policy="auto", budget=budget)


def test_auto_encodes_maps_and_trains_to_the_bits_of_keep() -> None:
    net, graph = plain(dtype="tf32")
    schedule = budgeted(graph, 0.8)
    check(schedule)
    recodes = [step for step in schedule.steps if step.action is Action.RECODE]
    assert {step.writes[0].form for step in recodes} >= {RAW}
    assert any(bridge.form.codec == TF32.codec for bridge in schedule.plan.bridges)
    batches = random_batches(2, (BATCH, 3, SIDE, SIDE), CLASSES, 1)
    kept = lower(graph, keep(graph), dear(graph))
    assert train(net, schedule, batches, order_seed=3).equals(train(net, kept, batches))

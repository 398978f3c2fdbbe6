"""Plans in keep's order whose codes are encoded straight to the host."""

from dataclasses import replace

import torch
from torch import nn

from tvdnn.engine import training_graph
from tvdnn.graph import TF32, Graph, Kind, may_rest_in
from tvdnn.optim import SGD
from tvdnn.planner.ir.plan import HOST, Plan
from tvdnn.planner.ir.schedule import Action, Lane, Schedule
from tvdnn.planner.lowering.codes import Encoded, codes_between, codes_left
from tvdnn.planner.policies.keep import keep

CLASSES, WIDTH = 4, 8


def convolutions(
    *, dtype: str, batch: int = 6, side: int = 8, depth: int = 4, sections: int = 3
) -> tuple[nn.Module, Graph]:
    """A chain of convolutions and ReLUs, whose weight gradients read maps behind ReLUs."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for number in range(depth):
        layers += [nn.Conv2d(WIDTH if number else 3, WIDTH, 3, padding=1), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(WIDTH * side**2, CLASSES))
    x = torch.empty(batch, 3, side, side)
    optimizer = SGD(momentum=0.9)
    return net, training_graph(net, x, optimizer=optimizer, sections=sections, dtype=dtype)


def straight_plan(graph: Graph, *, zero_copy: bool = True) -> Plan:
    """keep's order, with all maps that may rest as TF32 codes on the host between their uses.

    Unless `zero_copy`, launches encode, and an engine copies the codes.
    """
    plan = keep(graph)
    left = tuple(codes_left(graph, plan.segments))
    maps = [each for each in graph.buffers.values() if each.kind is Kind.MAP]
    encoded = [Encoded(each.name, 0, TF32) for each in maps if may_rest_in(each, TF32)]
    bridges = (
        replace(each, tier=HOST, zero_copy=zero_copy)
        for each in codes_between(graph, plan.segments, encoded, left)
    )
    return replace(plan, bridges=(*left, *bridges))


def straight_steps(schedule: Schedule) -> list[int]:
    """The steps that encode straight to the host."""
    steps = enumerate(schedule.steps)
    return [n for n, each in steps if each.action is Action.RECODE and each.lane is Lane.OFFLOAD]

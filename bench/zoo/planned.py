"""What a network's training step would take on an H200 by its data sheet."""

import time
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import nn

from bench.large_plans import KEEP, MACHINE, planned_graph
from bench.planned_budgets import AUTO
from bench.zoo.networks import ZooNetwork
from tvdnn.errors import BudgetError, TvdnnError
from tvdnn.graph import Graph
from tvdnn.planner.ir.costs import Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.make import Problem
from tvdnn.planner.timing.simulate import simulate

HALF: Final = "half"  # auto in half of keep's memory

Row = dict[str, Any]


def planned(network: ZooNetwork, net: nn.Module, dtype: str) -> Row:
    """The row of a network, whose parameters may lie on the meta device."""
    row = {"net": network.net, "library": network.library, "batch": network.batch}
    row |= {"side": network.side, "dtype": dtype, "hardware": MACHINE, "simulated": True}
    try:
        return row | dict(_planned(network, net, dtype))
    except TvdnnError as error:
        return row | {"refused": str(error).split("\nsupported:")[0]}


def _planned(network: ZooNetwork, net: nn.Module, dtype: str) -> Iterator[tuple[str, Any]]:
    begun_s = time.process_time()
    kept, problem = (_problem(network, net, dtype, policy) for policy in (KEEP, AUTO))
    yield "trace_cpu_s", (time.process_time() - begun_s) / 2
    peak = kept.schedule(KEEP).peak_nbytes
    for name, policy, each in (
        (KEEP, KEEP, kept),
        (AUTO, AUTO, problem),
        (HALF, AUTO, problem.within(peak // 2)),
    ):
        begun_s = time.process_time()
        try:
            schedule = each.schedule(policy)  # checked
        except BudgetError as error:
            yield f"{name}_floor_bytes", error.floor_nbytes
            continue
        yield f"{name}_plan_cpu_s", time.process_time() - begun_s
        yield f"{name}_peak_bytes", schedule.peak_nbytes
        yield f"{name}_s", simulate(schedule, each.costs).step_s


def _problem(network: ZooNetwork, net: nn.Module, dtype: str, policy: str) -> Problem:
    graph = graph_of(network, net, dtype, policy)
    return Problem(graph, Roofline(load(MACHINE), graph.dtype))


def graph_of(network: ZooNetwork, net: nn.Module, dtype: str, policy: str) -> Graph:
    """The training step of a network on the meta device, as a policy plans it."""
    shape = (network.batch, 3, network.side, network.side)
    x = torch.empty(shape, device="meta")
    return planned_graph(net, x, policy, loss_weights=network.loss_weights, dtype=dtype)

"""What a network's training step would take on an H100 by launches that were measured on one."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from bench.large_plans import KEEP, planned_graph
from bench.planned_budgets import AUTO
from bench.zoo.networks import ZooNetwork
from bench.zoo.rows import TORCH, RowFile, compiled_nbytes, of_gpu
from tvdnn.errors import BudgetError, TvdnnError
from tvdnn.graph import Graph
from tvdnn.planner.ir.costs import Profile, Samples, form_choices
from tvdnn.planner.ir.hardware import ASSUMED_LINKS
from tvdnn.planner.ir.plan import HOST
from tvdnn.planner.ir.settings import ENGINE
from tvdnn.planner.make import Problem
from tvdnn.planner.timing.simulate import simulate
from tvdnn.runtime.known_launches import SAME_CHIP, known_launches
from tvdnn.runtime.launch_timer import SCRATCH_NBYTES
from tvdnn.runtime.profiler import recode_signature, signature
from tvdnn.runtime.recode_timer import estimated_recode, recodes_of

GPU: Final = SAME_CHIP["H100"]
TORCHS_ROWS: Final = Path(__file__).parents[1] / "results" / "zoo" / f"{TORCH}_{of_gpu(GPU)}.json"
HALF: Final = "half"  # auto in half of torch.compile's memory

Row = dict[str, Any]


def planned(network: ZooNetwork, net: nn.Module, dtype: str) -> Row:
    """The row of a network, whose parameters may lie on the meta device."""
    row = {"net": network.net, "library": network.library, "batch": network.batch}
    row |= {"side": network.side, "dtype": dtype, "hardware": GPU, "simulated": True}
    try:
        return row | dict(_planned(network, net, dtype))
    except TvdnnError as error:
        return row | {"refused": str(error).split("\nsupported:")[0]}


def _planned(network: ZooNetwork, net: nn.Module, dtype: str) -> Iterator[tuple[str, Any]]:
    begun_s = time.process_time()
    kept, graph = (graph_of(network, net, dtype, policy) for policy in (KEEP, AUTO))
    yield "trace_cpu_s", (time.process_time() - begun_s) / 2
    costs = known_costs(graph)
    yield "estimated_share", len(costs.estimated) / len(graph.passes)
    problem = Problem(graph, costs)
    trials = [(KEEP, KEEP, Problem(kept, known_costs(kept))), (AUTO, AUTO, problem)]
    peak = compiled_nbytes(RowFile(TORCHS_ROWS).rows, network.net, dtype)
    if peak is not None:
        yield f"{HALF}_budget_bytes", peak // 2
        trials.append((HALF, AUTO, problem.within(peak // 2)))
    for name, policy, each in trials:
        begun_s = time.process_time()
        try:
            schedule = each.schedule(policy)  # checked
        except BudgetError as error:
            yield f"{name}_floor_bytes", error.floor_nbytes
            continue
        yield f"{name}_plan_cpu_s", time.process_time() - begun_s
        yield f"{name}_peak_bytes", schedule.peak_nbytes
        yield f"{name}_s", simulate(schedule, each.costs).step_s


def known_costs(graph: Graph) -> Profile:
    """Costs by the launches that ship, the rest by the roofline and the rates of their kernels."""
    known, estimated = known_launches(GPU), set[str]()
    samples: dict[str, dict[frozenset[Any], Samples]] = {}
    for pass_ in graph.passes:
        for forms in form_choices(pass_):
            found = known.find(signature(graph, pass_, forms))
            if found is None:
                found = known.estimate(graph, pass_, forms)
                estimated.add(pass_.name)
            assert found is not None, f"{GPU} has a data sheet"
            samples.setdefault(pass_.name, {})[frozenset(forms)] = found
    recodes = {}
    for each in recodes_of(graph):
        found = known.find(recode_signature(each, SCRATCH_NBYTES))
        found = found or estimated_recode(each, SCRATCH_NBYTES, known)
        if found is not None:
            recodes[each] = found
    links = {**ASSUMED_LINKS, HOST: known.links[ENGINE]}
    return Profile(GPU, links, samples, recodes, frozenset(estimated))


def graph_of(network: ZooNetwork, net: nn.Module, dtype: str, policy: str) -> Graph:
    """The training step of a network on the meta device, as a policy plans it."""
    shape = (network.batch, 3, network.side, network.side)
    x = torch.empty(shape, device="meta")
    return planned_graph(net, x, policy, loss_weights=network.loss_weights, dtype=dtype)

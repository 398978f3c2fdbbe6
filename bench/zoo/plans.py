"""The zoo's networks planned without a GPU: which are refused, and what keep and auto would take.

    python -m bench.zoo.plans -o bench/results/plans/zoo.json
    python -m bench.zoo.plans --nets resnet50 rexnet_100 --dtype tf32 -o rows.json

Each network is traced on the meta device at its full batch, planned for an H200 by its data sheet
under keep and under auto without a budget, and checked. A row has the planned peaks and the
simulated seconds of a step; or, of a network that tvdnn refuses, the message. Rows are written as
they come, and rows that the file has stay.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from bench.command_line import parser_of
from bench.environment import software
from bench.large_plans import KEEP, MACHINE
from bench.planned_budgets import AUTO
from bench.zoo.library import make
from bench.zoo.networks import NAMES, NETWORKS, ZooNetwork
from tvdnn.engine import training_graph
from tvdnn.errors import TvdnnError
from tvdnn.graph import Graph
from tvdnn.optim import SGD
from tvdnn.planner.ir.costs import Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.make import Problem
from tvdnn.planner.policies import policy_named
from tvdnn.planner.timing.simulate import simulate

POLICIES: Final = (KEEP, AUTO)

Row = dict[str, Any]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--nets", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--dtype", choices=("bf16", "tf32"), default="bf16")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    rows = json.loads(options.output.read_text())["rows"] if options.output.exists() else []
    known = {(row["net"], row["dtype"]) for row in rows}
    for network in NETWORKS:
        if network.net not in options.nets or (network.net, options.dtype) in known:
            continue
        rows.append(planned(network, options.dtype))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        document = {"title": "The zoo's networks, planned", "rows": rows, "environment": software()}
        options.output.write_text(json.dumps(document, indent=1) + "\n")


def planned(network: ZooNetwork, dtype: str) -> Row:
    """The row of a network."""
    net = make(network).to("meta")  # RegNet reads values of tensors as it is made
    row = {"net": network.net, "library": network.library, "batch": network.batch}
    row |= {"side": network.side, "dtype": dtype, "hardware": MACHINE, "simulated": True}
    try:
        return row | dict(_planned(network, net, dtype))
    except TvdnnError as error:
        return row | {"refused": str(error).split("\nsupported:")[0]}


def _planned(network: ZooNetwork, net: nn.Module, dtype: str) -> Iterator[tuple[str, Any]]:
    for policy in POLICIES:
        begun_s = time.process_time()
        graph = graph_of(network, net, dtype, policy)
        traced_s = time.process_time()
        costs = Roofline(load(MACHINE), graph.dtype)
        schedule = Problem(graph, costs).schedule(policy)  # checked
        yield f"{policy}_peak_bytes", schedule.peak_nbytes
        yield f"{policy}_s", simulate(schedule, costs).step_s
        yield f"{policy}_trace_cpu_s", traced_s - begun_s
        yield f"{policy}_plan_cpu_s", time.process_time() - traced_s


def graph_of(network: ZooNetwork, net: nn.Module, dtype: str, policy: str) -> Graph:
    """The training step of a network on the meta device, as a policy plans it."""
    rewrites = policy_named(policy).rewrites()
    return training_graph(
        net,
        torch.empty(network.batch, 3, network.side, network.side, device="meta"),
        fuse=rewrites.fused,
        coded_pools=rewrites.coded_pools,
        masks_by_signs=rewrites.masks_by_signs,
        loss_weights=network.loss_weights,
        optimizer=SGD(momentum=0.9),
        dtype=dtype,
    )


if __name__ == "__main__":
    main()

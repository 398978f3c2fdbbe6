"""Bytes that Gist's networks take under gist's policies beside keep, planned without a GPU.

    python -m bench.gist_memory -o bench/results/plans/gist_memory.json
    python -m bench.gist_memory --nets vgg16 alexnet --dtypes bf16

A row is one network, type and policy, on single layers or fused ops. As the paper does, it counts
stored maps and the other bytes of the arena at its peak; parameters and optimizer state stand
apart. Its ratio is to keep on single layers. Bytes are planned, seconds predicted.

SSDC and bitmap codes have room for the densities that one step in float32 counts, of two random
images at random weights. Training makes ReLUs sparser. That step alone is run, on the CPU.
"""

import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from bench.command_line import parser_of
from bench.environment import software
from bench.large_plans import MACHINE
from tvdnn import models
from tvdnn.engine import Trainer, training_graph
from tvdnn.graph import BITMAP, FP16, SHARES, SSDC, TF32, Form, Graph, Kind
from tvdnn.optim import SGD
from tvdnn.planner.capacities import MARGIN
from tvdnn.planner.ir.budgets import Budgets
from tvdnn.planner.ir.costs import Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.plan import Plan
from tvdnn.planner.ir.schedule import Schedule
from tvdnn.planner.policies.gist import DECODING, LOSSLESS, LOSSY, LOSSY_FORMS, Codes, gist
from tvdnn.planner.policies.keep import keep
from tvdnn.planner.problem import GraphProblem
from tvdnn.planner.timing.memory_profile import memory_profile
from tvdnn.planner.timing.simulate import simulate
from tvdnn.planner.verify.check import check

# The paper's five networks, and one of batch normalization beside them.
PAPERS: Final = ("alexnet", "nin", "overfeat", "vgg16", "googlenet_lrn")
NETS: Final = (*PAPERS, "inception_v4")
BATCH: Final = 64  # of the paper
OBSERVED: Final = 2  # images of the step whose values are counted
ROOM: Final = 96  # percent of the values of that step that stay on the device
DTYPES: Final = ("fp32", "tf32", "bf16")
STORED: Final = (Kind.INPUT, Kind.MAP, Kind.AUX)  # what forward leaves for backward
Densities = Mapping[str, float]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--nets", nargs="+", default=NETS)
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for net in options.nets:
        for dtype in options.dtypes:
            found = rows_of(net, dtype, options.batch)
            print(*map(json.dumps, found), sep="\n", file=sys.stderr)
            rows += found
    document = {"title": "Gist's networks", "rows": rows, "environment": software()}
    text = json.dumps(document, indent=1) + "\n"
    options.output.write_text(text) if options.output else print(text)


def rows_of(net: str, dtype: str, batch: int) -> list[dict[str, Any]]:
    """The rows of a network in one type. The first is keep's on single layers."""
    rows: list[dict[str, Any]] = []
    for fused in (False, True):
        kept_s = 0.0
        for policy, graph, plan in _plans(net, dtype, batch, fused=fused):
            row = {"net": net, "batch": batch, "dtype": dtype, "policy": policy, "fused": fused}
            row |= {"hardware": MACHINE, "planned": True, **_bytes_of(graph, plan)}
            kept_s = kept_s or row["predicted_s"]
            row["keeps_s"] = kept_s
            row["shares"] = {b.buffer: b.form.share / SHARES for b in plan.bridges if b.form.share}
            row["ratio"] = (rows or [row])[0]["arena_bytes"] / row["arena_bytes"]
            rows.append(row)
    return rows


def _plans(net: str, dtype: str, batch: int, *, fused: bool) -> Iterator[tuple[str, Graph, Plan]]:
    """By policy, a graph and the plan without a budget."""
    plain = _graph_of(net, dtype, batch, fused=fused)
    yield "keep", plain, keep(plain)
    graph = plain if fused else _graph_of(net, dtype, batch, coded_pools=True)
    yield LOSSLESS, graph, gist(graph)
    for form in (SSDC, BITMAP, *([TF32] if dtype == "tf32" else [])):
        densities = {} if form == TF32 else observed_densities(net, fused=fused)
        yield f"{LOSSLESS}:{form}", graph, _decoding(graph, form, densities)
    for form in LOSSY_FORMS:
        if form != FP16 or dtype != "bf16":  # which it makes no smaller
            name = f"{LOSSY}:{form}"
            yield name, graph, gist(graph, name, DECODING[0], Codes(rounded=form))


def _decoding(graph: Graph, form: Form, densities: Densities) -> Plan:
    return gist(graph, LOSSLESS, DECODING[0], Codes(form, densities=densities))


@cache
def observed_densities(net: str, *, fused: bool) -> Densities:
    """By map behind a ReLU, the share of values that are not zero and some more."""
    torch.manual_seed(0)
    made = models.by_name(net)
    x = torch.randn(OBSERVED, *models.image_shape(net))
    policy = f"{LOSSLESS}{':fused' * fused}:{BITMAP}={ROOM}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a map without zeros spills
        trainer = Trainer(made, x, optimizer=SGD(), policy=policy, dtype="fp32")
        trainer.step(x, torch.zeros(OBSERVED, dtype=torch.int64))
        counts = trainer.code_counts
        trainer.close()
    found: dict[str, float] = {}
    for each in counts:
        buffer = each.code.buffer
        found[buffer] = max(each.density + MARGIN / SHARES, found.get(buffer, 0.0))
    return found


def _graph_of(
    net: str, dtype: str, batch: int, *, fused: bool = False, coded_pools: bool = False
) -> Graph:
    with torch.device("meta"):
        x, made = torch.empty(batch, *models.image_shape(net)), models.by_name(net)
    rewrites = {"fuse": fused, "coded_pools": coded_pools}
    return training_graph(made, x, optimizer=SGD(momentum=0.9), dtype=dtype, **rewrites)


def _schedule_of(graph: Graph, plan: Plan) -> tuple[Schedule, Roofline]:
    costs = Roofline(load(MACHINE), graph.dtype)
    schedule = GraphProblem(graph, costs, Budgets.of(graph, None, None)).lowered(plan)
    assert schedule is not None
    check(schedule)
    return schedule, costs


def _bytes_of(graph: Graph, plan: Plan) -> dict[str, Any]:
    """Bytes and seconds of the plan."""
    schedule, costs = _schedule_of(graph, plan)
    timeline = simulate(schedule, costs)
    levels = (kinds for _, kinds in memory_profile(schedule, timeline))
    peak = max(levels, key=lambda kinds: sum(kinds.values()))
    stored = sum(peak.get(kind, 0) for kind in STORED)
    return {
        "maps_bytes": stored,
        "other_bytes": schedule.arena_nbytes - stored,
        "arena_bytes": schedule.arena_nbytes,
        "slab_bytes": schedule.slab_nbytes,
        "parameter_bytes": graph.fixed["parameters"],
        "state_bytes": graph.fixed["optimizer state"],
        "predicted_s": timeline.step_s,
    }


if __name__ == "__main__":
    main()

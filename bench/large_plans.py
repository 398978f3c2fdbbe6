"""Plans of full-size networks on an H200 by its data sheet: how near the optimum, and how long.

    python -m bench.large_plans -o bench/results/plans/large.json

Nothing is run. A row says what a schedule takes, how keep and the lower bound stand beside it, and
the CPU seconds that planning, checking and simulating took on one core. `core_slowness` is how many
times as long as on an idle core fixed work took just then: neighbours share the core's caches. The
tests read the rows (test_large_plans.py): make them anew after a change to the planner.
"""

import heapq
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch import nn

from bench.command_line import parser_of
from bench.environment import software
from tvdnn import models
from tvdnn.engine import training_graph
from tvdnn.graph import Direction, Graph, Kind
from tvdnn.optim import SGD
from tvdnn.planner.ir.costs import Costs, Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.plan import HOST
from tvdnn.planner.ir.schedule import Lane, Schedule
from tvdnn.planner.ir.timeline import Timeline
from tvdnn.planner.make import make_schedule
from tvdnn.planner.policies import policy_named
from tvdnn.planner.timing.simulate import simulate
from tvdnn.planner.timing.step_bound import lower_bound
from tvdnn.planner.verify.check import check
from tvdnn.units import GIB, MIB

T = TypeVar("T")

MACHINE: Final = "H200"
KEEP: Final = "keep"
YARDSTICK_S: Final = 0.2  # CPU seconds of the fixed work on an idle core
TRIES: Final = 3  # of the fixed work


@dataclass(frozen=True, slots=True)
class Case:
    """A network and its batch, planned by a policy inside a budget."""

    net: str
    batch: int
    dtype: str
    policy: str
    budget: float  # below 1 a share of the peak of keep, else bytes
    chunk_size: int = 16 * MIB
    side: int | None = None  # of images; None: as the network is made for


CASES: Final = (
    Case("vgg16", 256, "bf16", "tvdnn-ilp", 1 / 2),
    Case("vgg16", 256, "bf16", "tvdnn-heuristic", 1 / 2),
    Case("vgg16", 256, "bf16", "vdnn-conv", 6 * GIB),
    Case("vgg16", 256, "bf16", "vdnn-all", 6 * GIB),
    Case("vgg16", 256, "bf16", "auto", 5 * GIB // 2),
    Case("vgg16_bn", 128, "bf16", "auto", 1 / 3),
    Case("vgg416", 32, "fp32", "vdnn-all", 12 * GIB),
    Case("resnet50", 256, "bf16", "tvdnn-ilp", 1 / 4),
    Case("resnet50", 256, "bf16", "auto", 2624 * MIB, 64 * MIB),
    Case("googlenet", 128, "bf16", "tvdnn-ilp", 264_000_000),
    Case("resnet2500", 16, "tf32", "auto", 12 * GIB),
    Case("resnet2500", 16, "tf32", "tvdnn-heuristic", 12 * GIB),
)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    rows = []
    for case in CASES:
        rows.append(row_of(case))
        print(json.dumps(rows[-1]), file=sys.stderr)
    document = {"title": "Plans of full-size networks", "rows": rows, "environment": software()}
    text = json.dumps(document, indent=1) + "\n"
    options.output.write_text(text) if options.output else print(text)


def graph_of(case: Case) -> Graph:
    """A training step of the case's network, as its policy plans it, on the meta device."""
    with torch.device("meta"):
        net = models.by_name(case.net)
        channels, *sides = models.image_shape(case.net)
        sides = sides if case.side is None else [case.side, case.side]
        x = torch.empty(case.batch, channels, *sides)
    return planned_graph(net, x, case.policy, dtype=case.dtype, chunk_size=case.chunk_size)


def planned_graph(net: nn.Module, x: torch.Tensor, policy: str, **settings: Any) -> Graph:
    """A training step of a network by SGD with momentum, as a policy plans it."""
    rewrites = policy_named(policy).rewrites()
    return training_graph(
        net,
        x,
        fuse=rewrites.fused,
        coded_pools=rewrites.coded_pools,
        masks_by_signs=rewrites.masks_by_signs,
        remakes_maps=rewrites.remakes_maps,
        optimizer=SGD(momentum=0.9),
        **settings,
    )


def task_of(case: Case) -> tuple[Graph, Costs, Schedule, int]:
    """The case's graph, costs, keep's schedule and the budget in bytes."""
    graph = graph_of(case)
    costs = Roofline(load(MACHINE), graph.dtype)
    kept = make_schedule(graph, costs, policy=KEEP)
    budget = int(case.budget if case.budget > 1 else case.budget * kept.peak_nbytes)
    return graph, costs, kept, budget


def row_of(case: Case) -> dict[str, Any]:
    """A row of the case's schedule, with keep and the lower bound beside it."""
    graph, costs, kept, budget = task_of(case)
    schedule, plan_s = _timed(
        lambda: make_schedule(graph, costs, policy=case.policy, budget=budget)
    )
    slowness = _core_slowness()
    _, check_s = _timed(lambda: check(schedule))
    timeline, simulate_s = _timed(lambda: simulate(schedule, costs))
    return {
        "net": case.net,
        "batch": case.batch,
        "dtype": case.dtype,
        "policy": case.policy,
        "hardware": MACHINE,
        "simulated": True,
        "budget_bytes": budget,
        "chunk_size": case.chunk_size,
        "planned_peak_bytes": schedule.peak_nbytes,
        "kept_peak_bytes": kept.peak_nbytes,
        "fragmentation": schedule.fragmentation,
        "offloaded_bytes": schedule.offloaded_nbytes,
        "predicted_s": timeline.step_s,
        "kept_s": simulate(kept, costs).step_s,
        "compute_s": _compute_s(timeline),
        "link_s": schedule.offloaded_nbytes / min(costs.links[HOST].out, costs.links[HOST].back),
        **_beside_bound(schedule, costs, budget),
        "num_remade": len(_remade(schedule)),
        "num_remade_forward": len(_remade_forward(schedule)),
        "num_steps": len(schedule.steps),
        "core_slowness": slowness,
        "plan_cpu_s": plan_s,
        "check_cpu_s": check_s,
        "simulate_cpu_s": simulate_s,
    }


def _timed(run: Callable[[], T]) -> tuple[T, float]:
    """The result of `run`, and its CPU seconds."""
    begin = time.process_time()
    result = run()
    return result, time.process_time() - begin


def _core_slowness() -> float:
    """How many times as long as on an idle core work of the planner's kind takes now, up to 2."""
    least_s = min(_timed(_fixed_work)[1] for _ in range(TRIES))
    return min(max(least_s / YARDSTICK_S, 1.0), 2.0)


def _fixed_work() -> None:
    """Work on dictionaries, heaps and sorted lists."""
    table: dict[int, int] = {}
    heap: list[tuple[int, int]] = []
    for n in range(200_000):
        key = n * 7919 % 65536
        table[key] = table.get(n * 104729 % 65536, 0) + n
        if n % 4 == 0:
            heapq.heappush(heap, (key, n))
    sorted(table.items(), key=itemgetter(1))
    while heap:
        heapq.heappop(heap)


def _compute_s(timeline: Timeline) -> float:
    return sum(span.end_s - span.start_s for span in timeline.spans if span.lane is Lane.COMPUTE)


def _beside_bound(schedule: Schedule, costs: Costs, budget: int) -> dict[str, Any]:
    """The standing that a plan carries, and for plans that only copy the bytes that must leave."""
    optimality = schedule.plan.optimality
    if optimality is None:
        return {"gap": None, "binds": None, "least_offloaded_bytes": None}
    least = lower_bound(schedule.graph, costs, budget=budget, recompute=False)
    return {
        "gap": optimality.gap,
        "binds": next(iter(optimality.sensitivities)),
        "least_offloaded_bytes": least and least.offloaded_nbytes,
    }


def _remade(schedule: Schedule) -> set[str]:
    """The buffers that are made again."""
    return _written(schedule, [slot.pass_index for slot in schedule.plan.slots if slot.recompute])


def _remade_forward(schedule: Schedule) -> set[str]:
    """The feature maps that are made again before backward begins."""
    passes, buffers = schedule.graph.passes, schedule.graph.buffers
    turn = next(
        number
        for number, step in enumerate(schedule.steps)
        if passes[step.pass_index].direction is Direction.BACKWARD
    )
    again = [step.pass_index for step in schedule.steps[:turn] if step.recompute]
    return {name for name in _written(schedule, again) if buffers[name].kind is Kind.MAP}


def _written(schedule: Schedule, passes: Sequence[int]) -> set[str]:
    """The buffers that these passes write sample by sample."""
    graph = schedule.graph
    return {use.buffer for index in passes for use in graph.passes[index].writes if not use.whole}


if __name__ == "__main__":
    main()

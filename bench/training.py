"""One network's training by tvdnn: a row of what it takes."""

import copy
import gc
import hashlib
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import tvdnn
from bench.environment import environment
from bench.nets import net_of, network
from bench.timing import GROUPS, paced, timed
from bench.turn import Turn
from tvdnn.engine import training_graph
from tvdnn.errors import BudgetError, DeviceError
from tvdnn.graph import Graph
from tvdnn.ops.chunk_size import LEAST_CHUNK_SIZE
from tvdnn.planner.ir.costs import Costs, Link
from tvdnn.planner.ir.plan import HOST
from tvdnn.planner.ir.schedule import Lane, Schedule
from tvdnn.planner.ir.timeline import Timeline, copy_waits
from tvdnn.planner.make import Problem
from tvdnn.planner.timing.simulate import seconds_alone, simulate
from tvdnn.report.rows import Case, Floor, Measurement, infeasible_row, measured_row
from tvdnn.runtime.host_slab import Slab, available_nbytes
from tvdnn.units import GIB

WARM = 2  # steps before the timed ones
STEPS = 20
BUSY_STEPS = 5
HOST_CAP = 110 * GIB
SGD = tvdnn.optim.SGD(lr=1e-3, momentum=0.9)

Rows = list[dict[str, Any]]


class Oracle:
    """keep's losses, and a digest of its weights after the same steps."""

    def __init__(self) -> None:
        self.losses: list[float] | None = None
        self.weights = ""

    def equals(self, losses: list[float], weights: str) -> bool | None:
        """Whether these equal the first call's, which it keeps. None for the first call."""
        if self.losses is None:
            self.losses, self.weights = losses, weights
            return None
        return losses == self.losses and weights == self.weights


def digest(net: nn.Module) -> str:
    found = hashlib.sha256()
    for param in net.parameters():
        found.update(param.detach().cpu().numpy().tobytes())
    return found.hexdigest()


@cache
def _first(name: str) -> nn.Module:
    torch.manual_seed(0)
    return network(name)


def initial(name: str) -> nn.Module:
    """A network on the CPU. Its weights, and the numbers drawn after it, are always the same."""
    net = copy.deepcopy(_first(name))
    torch.manual_seed(0)
    return net


def prepare(
    name: str,
    policy: str,
    budget: float | None,
    x: torch.Tensor,
    dtype: str,
    slab: Slab,
    *,
    host_cap: int = HOST_CAP,
    turn: Turn | None = None,
    **options: Any,
) -> tuple[tvdnn.Trainer, nn.Module, float]:
    """A trainer, its network and the seconds that it took to make."""
    net = initial(name)
    if turn is not None:
        turn.take()
    net.cuda()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    limit = None if budget is None else round(budget * GIB)
    host = min(available_nbytes() + slab.nbytes, host_cap)
    trainer = tvdnn.Trainer(
        net,
        x,
        optimizer=SGD,
        loss_weights=net_of(name).weights,
        policy=policy,
        budget=limit,
        host_budget=host,
        dtype=dtype,
        slab=slab,
        feedback=False,
        progress=turn,
        **options,
    )
    return trainer, net, time.perf_counter() - begin


def run(
    name: str,
    policy: str,
    budget: float | None,
    x: torch.Tensor,
    y: torch.Tensor,
    dtype: str,
    slab: Slab,
    oracle: Oracle,
    *,
    steps: int = STEPS,
    **options: Any,
) -> dict[str, Any]:
    """A row of one policy at one budget, without measurements if it does not fit."""
    turn, chosen = Turn(), case(name, policy, budget, x, dtype)
    try:
        trainer, net, ready = prepare(name, policy, budget, x, dtype, slab, turn=turn, **options)
    except DeviceError:
        turn.give()
        whole = torch.cuda.get_device_properties().total_memory
        if budget is not None:
            raise
        return run(name, policy, whole / GIB, x, y, dtype, slab, oracle, steps=steps, **options)
    except BudgetError as error:
        turn.give()
        graph = graph_of(name, x, dtype)
        floor = Floor(error.floor_nbytes, error.step)
        row = infeasible_row(
            chosen, floor, baseline_nbytes=graph.baseline_nbytes, simulated=False
        ).to_json()
        show(row)
        return row
    found: list[torch.Tensor] = []

    def step() -> None:
        found.append(trainer.step(x, y))

    first_s = timed(step)
    step_s = paced(step, (steps - WARM) // GROUPS)
    losses = [loss.item() for loss in found]
    weights = digest(net)
    equal = oracle.equals(losses, weights)
    allocated = torch.cuda.max_memory_allocated() + trainer.nbytes_outside_torch
    peak, timeline = trainer.peak_nbytes(), trainer.timeline(x, y)
    busy = {"busy_share": busy_share(lambda: trainer.step(x, y))} if policy == "keep" else {}
    schedule, costs = trainer.schedule, trainer.costs
    release(trainer)
    turn.give()
    row = measured(schedule, costs, chosen, step_s, tuple(losses), peak, timeline)
    row |= {"equal": equal, "weights": weights, "max_memory_allocated": allocated}
    row |= {"ready_s": ready, "first_step_s": ready + first_s}
    row["construction_peak_bytes"] = trainer.construction_peak_nbytes
    row["chunk_size"] = schedule.graph.chunk_size
    row |= busy
    row["link_rate"] = min(costs.links[HOST].out, costs.links[HOST].back)
    show(row)
    return row


def graph_of(name: str, x: torch.Tensor, dtype: str) -> Graph:
    """The graph that a trainer of the network plans."""
    return training_graph(
        initial(name).to("meta"),
        x.to("meta"),
        optimizer=SGD,
        loss_weights=net_of(name).weights,
        dtype=dtype,
    )


def case(name: str, policy: str, budget: float | None, x: torch.Tensor, dtype: str) -> Case:
    limit = None if budget is None else round(budget * GIB)
    gpu = torch.cuda.get_device_name()
    size = (x.shape[0], x.shape[2])
    return Case(name, *size, dtype, policy, limit, LEAST_CHUNK_SIZE, gpu, environment())


def measured(
    schedule: Schedule,
    costs: Costs,
    chosen: Case,
    step_s: float,
    losses: tuple[float, ...],
    peak: int,
    timeline: Timeline | None = None,
) -> dict[str, Any]:
    """The row of a schedule that ran."""
    problem = Problem(schedule.graph, costs, chosen.budget_bytes)
    floor, least = Floor(*problem.floor(chosen.policy)), problem.bound(chosen.policy)
    row = measured_row(
        chosen,
        schedule,
        Measurement(step_s, peak, losses[-1], timeline),
        floor,
        predicted_s=simulate(schedule, costs).step_s,
        bound_s=None if least is None else least.step_s,
    ).to_json() | {"losses": losses}
    optimality = schedule.plan.optimality
    row |= {"relaxed_s": None if optimality is None else optimality.bound_s}
    if timeline is None:
        return row
    row |= {"compute_s": compute_s(schedule, costs)}
    row |= {"link_s": link_s(schedule, costs.links[HOST])}
    return row | {"wait_rate": wait_rate(schedule, timeline)}


def compute_s(schedule: Schedule, costs: Costs) -> float:
    """Seconds that launches and recodes take by themselves, as the profiler measured them."""
    own = (step for step in schedule.steps if step.lane is Lane.COMPUTE)
    return sum(seconds_alone(schedule.graph, each, costs) for each in own)


def link_s(schedule: Schedule, link: Link) -> float:
    """Seconds that the bytes copied take at the link's measured rates, each way by itself."""
    rates = {Lane.OFFLOAD: link.out, Lane.PREFETCH: link.back}
    return max(
        sum(step.copied_nbytes for step in schedule.steps if step.lane is lane) / rate
        for lane, rate in rates.items()
    )


def wait_rate(schedule: Schedule, timeline: Timeline) -> float | None:
    """Bytes per second copied while compute waits for copies."""
    waits = copy_waits(schedule, timeline.spans)
    if not waits:
        return None
    copied = 0.0
    for span in timeline.spans:
        if span.lane is not Lane.COMPUTE:
            shares = (min(end, span.end_s) - max(start, span.start_s) for start, end in waits)
            shared_s = sum(share for share in shares if share > 0)
            copied += (
                schedule.steps[span.step].copied_nbytes * shared_s / (span.end_s - span.start_s)
            )
    return copied / sum(end - start for start, end in waits)


def busy_share(step: Callable[[], object]) -> float:
    """Share of the time of some steps in which a kernel runs, from the first one on."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(BUSY_STEPS):
            step()
        torch.cuda.synchronize()
    kernels = (e for e in profiled.events() if not e.name.startswith(("Memcpy", "Memset")))
    spans = sorted((e.time_range.start, e.time_range.end) for e in kernels)
    busy, reached = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy / (reached - spans[0][0])


def release(trainer: tvdnn.Trainer) -> None:
    trainer.close()
    gc.collect()
    torch.cuda.empty_cache()


def show(row: dict[str, Any]) -> None:
    keys = (
        "net",
        "policy",
        "budget_bytes",
        "step_s",
        "predicted_s",
        "planned_peak_bytes",
        "peak_bytes",
        "equal",
        "busy_share",
        "max_memory_allocated",
        "floor_bytes",
    )
    print(
        *(f"{key}={row[key]}" for key in keys if row.get(key) is not None),
        f"wait={row.get('wait_rate')}",
        flush=True,
    )

"""Whole training steps on a GPU: policies and budgets, beside torch eager and torch.compile.

    python -m bench.steps compare --inside 2.5 -o bench/results/compare_vgg16_bf16.json
    python -m bench.steps matrix --dtype bf16 -o bench/results/vgg16_bf16.json
    python -m bench.steps deep -o bench/results/deep.json
    python -m bench.steps largest -o bench/results/largest.json
    python -m bench.steps soak -o bench/results/soak.json
    python -m bench.steps tuned -o bench/results/tuned.json

`compare` trains a network by torch eager, torch.compile, that with the batch in `--parts` whose
gradients add up, keep, and auto `--inside` GiB that hold the caller's tensors too. `matrix` trains
VGG-16 (batch 256) under every vDNN policy at several budgets, `deep` VGG-416 (batch 32) and AlexNet
(batch 7168) inside 12 GiB, `largest` four times the batches that SuperNeurons reaches in as much,
`soak` runs 1,000 steps and repeats a run with random delays, `tuned` trains inside a budget before
and after `tvdnn tune`. Losses and weights after 20 steps are
compared with keep's in the same run. Each file holds its rows as JSON. Let no other job of the host
copy meanwhile: three at once, each on a GPU of its own, took up to 13% longer.
"""

import argparse
import copy
import gc
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import tvdnn
from bench.environment import environment
from bench.nets import batch, loss_of, net_of, network
from tests.accuracy import eager
from tvdnn.cli import main as tvdnn_command
from tvdnn.engine import training_graph
from tvdnn.errors import BudgetError
from tvdnn.planner.costs import Costs, Link
from tvdnn.planner.planning import DEFAULT_CHUNK_SIZE, bound_of, floor_of
from tvdnn.planner.schedule import Lane, Schedule
from tvdnn.planner.timeline import Timeline, copy_waits
from tvdnn.planner.tuned import ENGINE
from tvdnn.report.rows import Case, Floor, Measurement, infeasible_row, measured_row
from tvdnn.runtime.slab import Slab, available_nbytes
from tvdnn.units import GIB

POLICIES = ("keep", "vdnn-all:m", "vdnn-all:p", "vdnn-conv:m", "vdnn-conv:p", "vdnn-dyn")
BUDGETS = (None, 12, 6, 4)
STEPS = 20
BUSY_STEPS = 5
SUPERNEURONS = {  # largest batches in 12 GB: Wang et al., PPoPP 2018
    "alexnet": 1792,
    "vgg16": 224,
    "inception_v4": 240,
    "resnet50": 384,
    "resnet101": 256,
    "resnet152": 176,
}
TUNED = (("vgg16", 256, 2.5), ("resnet50", 256, 4))  # networks, batches and GiB
UNTUNED = {"chunk_size": DEFAULT_CHUNK_SIZE, "lead": sys.maxsize, "copies": ENGINE}
HOST_CAP = 110 * GIB
AUTOCAST = "torch.compile, autocast"
SGD = tvdnn.optim.SGD(lr=1e-3, momentum=0.9)

Rows = list[dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--net", default="vgg16", help="any of torchvision's or ours")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument(
        "--nets", nargs="+", default=tuple(SUPERNEURONS), help="of `largest`, `tuned`"
    )
    parser.add_argument("--image-size", type=int, help="the network's own unless given")
    parser.add_argument("--parts", type=int, nargs="*", default=(4, 8, 16))
    parser.add_argument("--inside", type=float, nargs="*", default=())
    parser.add_argument("--dtype", choices=("bf16", "tf32"), default="bf16")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--eager-only", action="store_true", help="no torch.compile as a peer")
    parser.add_argument("--autocast", action="store_true", help="a peer with float32 parameters")
    parser.add_argument("--cold", action="store_true", help="start with empty caches")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    title, note, rows = JOBS[options.job](options)
    keep = next((row["step_s"] for row in rows if row["policy"] == "keep" and row["step_s"]), None)
    for row in rows:
        if row.get("step_s") and keep and options.job not in ("deep", "largest", "tuned"):
            row["slowdown"] = row["step_s"] / keep
    document = {"title": title, "note": note, "environment": environment(), "rows": rows}
    options.output.write_text(json.dumps(document, indent=1) + "\n")


def compare(options: argparse.Namespace) -> tuple[str, str, Rows]:
    """One network by torch and by tvdnn, all memory counted by torch with the caller's tensors."""
    x, y = batch(options.net, options.batch, options.image_size)
    rows: Rows = []
    if not options.no_peers:
        compiled = [] if options.eager_only else [("torch.compile", 1)]
        ways = [*compiled, *(("torch.compile", count) for count in options.parts)]
        ways += [(AUTOCAST, 1)] if options.autocast else []
        rows += peers(options.net, x, y, options.dtype, ways)
    slab, oracle = Slab(pinned=True), Oracle()
    held = sum(value.numel() * value.element_size() for value in (x, y))
    with empty_caches() if options.cold else nullcontext():
        kept = run(options.net, "keep", None, x, y, options.dtype, slab, oracle)
        rows.append(kept | ({"cold_s": kept["first_step_s"]} if options.cold else {}))
    for inside in options.inside:
        budget = inside - held / GIB
        row = run(options.net, "auto", budget, x, y, options.dtype, slab, oracle)
        rows.append(row | {"inside_bytes": round(inside * GIB)})
    note = (
        "Memory by torch's counter, with the caller's x and y; `parts`: gradients of them add up."
    )
    if options.dtype == "bf16":
        note += " torch's parameters and momentum are bf16 except by autocast, tvdnn's are float32."
    return (
        f"{net_of(options.net).title}, batch {options.batch}, {options.dtype}",
        note,
        rows,
    )


def matrix(options: argparse.Namespace) -> tuple[str, str, Rows]:
    """VGG-16, batch 256: peers, then every policy at every budget, over one slab."""
    x, y = batch("vgg16", 256)
    rows = [] if options.no_peers else peers("vgg16", x, y, options.dtype, [("torch.compile", 1)])
    slab, oracle = Slab(pinned=True), Oracle()
    for policy in options.policies.split(","):
        for budget in BUDGETS:
            rows.append(run("vgg16", policy, budget, x, y, options.dtype, slab, oracle))
    note = f"{STEPS} steps each from the same weights; `equal`: losses and weights as keep's."
    return f"VGG-16, batch 256, {options.dtype}", note, rows


def deep(options: argparse.Namespace) -> tuple[str, str, Rows]:
    """Networks whose maps are many times the budget: float32 storage, tf32 arithmetic."""
    rows: Rows = []
    slab = Slab(pinned=True)
    for net, size in (("vgg416", 32), ("alexnet", 7168)):
        x, y = batch(net, size)
        oracle = Oracle()
        for policy, budget in (("keep", None), ("vdnn-all", 12)):
            rows.append(run(net, policy, budget, x, y, "tf32", slab, oracle))
        del x, y
    return "VGG-416(32) and AlexNet(7168) inside 12 GiB, float32 storage, tf32", "", rows


def largest(options: argparse.Namespace) -> tuple[str, str, Rows]:
    """Four times SuperNeurons' batches inside 12 GiB, and keep at theirs without a budget."""
    rows: Rows = []
    slab = Slab(pinned=True)
    for net in options.nets:
        size = SUPERNEURONS[net]
        for policy, budget, count in (("keep", None, size), ("auto", 12, 4 * size)):
            x, y = batch(net, count)
            rows.append(run(net, policy, budget, x, y, "tf32", slab, Oracle()) | {"equal": None})
            del x, y
    note = (
        "Float32 storage. auto has four times the batch that SuperNeurons reaches in 12 GB, keep "
        f"that batch itself and no budget; host memory up to {HOST_CAP // GIB} GiB."
    )
    return "Largest batches inside 12 GiB, tf32", note, rows


def soak(options: argparse.Namespace) -> tuple[str, str, Rows]:
    """1,000 steps of VGG-16(256) under vdnn-conv at 6 GiB, then 20 steps with random delays."""
    x, y = batch("vgg16", 256)
    slab, oracle = Slab(pinned=True), Oracle()
    rows = [run("vgg16", "keep", None, x, y, options.dtype, slab, oracle)]
    trainer, _ = prepare("vgg16", "vdnn-conv", 6, x, options.dtype, slab)
    seconds, device, host = [], [], []
    for index in range(1000):
        seconds.append(timed(lambda: trainer.step(x, y)))
        if index % 100 == 99:
            device.append(torch.cuda.memory_allocated())
            host.append(resident_nbytes())
    first, last = median(seconds[:100]), median(seconds[-100:])
    losses = tuple(trainer.step(x, y).item() for _ in range(2))
    row = measured(
        trainer, case("vgg16", "vdnn-conv", 6, x, options.dtype), median(seconds), losses
    )
    row |= {"first_100_s": first, "last_100_s": last}
    row |= {"device_growth_bytes": device[-1] - device[0], "host_growth_bytes": host[-1] - host[0]}
    rows.append(row)
    release(trainer)
    for policy, budget in (("vdnn-all", 6), ("vdnn-conv", 6)):
        rows.append(
            run("vgg16", policy, budget, x, y, options.dtype, slab, oracle, delay_seed=1)
            | {"random_delays": True}
        )
    note = "1,000 steps under vdnn-conv, then runs whose every step starts after a random delay."
    return f"Endurance: VGG-16, batch 256, {options.dtype}", note, rows


def tuned(options: argparse.Namespace) -> tuple[str, str, Rows]:
    """keep, and auto inside a budget, as they are by default and as tuned.

    What was tried before, in the cache, is not tried again.
    """
    rows: Rows = []
    slab = Slab(pinned=True)
    for net, size, inside in (each for each in TUNED if each[0] in options.nets):
        x, y = batch(net, size)
        untuned = Oracle()
        for policy, budget in (("keep", None), ("auto", inside)):
            row = run(net, policy, budget, x, y, options.dtype, slab, untuned, **UNTUNED)
            rows.append(row | {"tuned": False})
        found, oracle = tune(net, size, inside, options.dtype), Oracle()
        for policy, budget in (("keep", None), (found["choice"]["policy"], inside)):
            row = run(net, policy, budget, x, y, options.dtype, slab, oracle)
            assert row["chunk_size"] == found["chunks"]["default"], "tuned another network"
            rows.append(row | {"tuned": True, **found})
        del x, y
    note = (
        "Each pair of rows has one set of chunk sizes; `equal`: losses and weights as its keep's."
    )
    return f"Tuned against default, {options.dtype}", note, rows


def tune(name: str, size: int, inside: float, dtype: str) -> dict[str, Any]:
    """What `tvdnn tune` settles for one of our networks: chunk sizes, and the budget's choice."""
    with TemporaryDirectory() as folder:
        path = f"{folder}/tuned.json"
        budget = str(round(inside * GIB))
        command = ["tune", name, "--batch", str(size), "--dtype", dtype, "--budget", budget]
        code = tvdnn_command([*command, "--report", "--json", path])
        assert code == 0, f"tuning {name} ended with {code}"
        found = json.loads(Path(path).read_text())
    settled = found["budgets"][0]
    return {"chunks": found["chunks"], "choice": settled["choice"], "curve": found["curve"]}


JOBS = {
    "compare": compare,
    "matrix": matrix,
    "deep": deep,
    "largest": largest,
    "soak": soak,
    "tuned": tuned,
}


class Oracle:
    """What keep computed: losses and a digest of the weights after the same steps."""

    def __init__(self) -> None:
        self.losses: list[float] | None = None
        self.weights = ""

    def equals(self, losses: list[float], net: nn.Module) -> bool:
        """Whether these equal the first ones seen, which are kept."""
        weights = digest(net)
        if self.losses is None:
            self.losses, self.weights = losses, weights
        return losses == self.losses and weights == self.weights


def digest(net: nn.Module) -> str:
    found = hashlib.sha256()
    for param in net.parameters():
        found.update(param.detach().cpu().numpy().tobytes())
    return found.hexdigest()


@contextmanager
def empty_caches() -> Iterator[None]:
    """Nothing compiled or measured before is found within."""
    with TemporaryDirectory() as folder:
        homes = {"TRITON_CACHE_DIR": f"{folder}/triton", "TVDNN_CACHE": f"{folder}/tvdnn"}
        with patch.dict(os.environ, homes):
            yield


@cache
def _first(name: str) -> nn.Module:
    torch.manual_seed(0)
    return network(name)


def initial(name: str) -> nn.Module:
    """A network on the CPU with the same weights every time, and so what is drawn from then on."""
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
    **options: Any,
) -> tuple[tvdnn.Trainer, nn.Module]:
    gc.collect()  # what others hold is measured as the trainer is made
    net = initial(name).cuda()
    limit = None if budget is None else round(budget * GIB)
    host = min(available_nbytes() + slab.nbytes, HOST_CAP)
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
        **options,
    )
    return trainer, net


def run(
    name: str,
    policy: str,
    budget: float | None,
    x: torch.Tensor,
    y: torch.Tensor,
    dtype: str,
    slab: Slab,
    oracle: Oracle,
    **options: Any,
) -> dict[str, Any]:
    """A row: 20 steps of one policy at one budget."""
    begin = time.perf_counter()
    try:
        trainer, net = prepare(name, policy, budget, x, dtype, slab, **options)
    except BudgetError as error:
        chosen = case(name, policy, budget, x, dtype)
        graph = training_graph(
            initial(name).to("meta"),
            x.to("meta"),
            optimizer=SGD,
            loss_weights=net_of(name).weights,
            dtype=dtype,
        )
        floor = Floor(error.floor_nbytes, error.step)
        row = infeasible_row(
            chosen, floor, baseline_nbytes=graph.baseline_nbytes, simulated=False
        ).to_json()
        show(row)
        return row
    ready = time.perf_counter() - begin
    losses, seconds = [], []
    for _ in range(STEPS):
        seconds.append(timed(lambda: losses.append(trainer.step(x, y).item())))
    equal = oracle.equals(losses, net)
    allocated = torch.cuda.max_memory_allocated()
    row = measured(
        trainer, case(name, policy, budget, x, dtype), median(seconds[2:]), tuple(losses), x, y
    )
    row |= {"equal": equal, "max_memory_allocated": allocated}
    row |= {"ready_s": ready, "first_step_s": ready + seconds[0]}
    row["construction_peak_bytes"] = trainer.construction_peak_nbytes
    row["chunk_size"] = trainer.graph.chunk_size
    if policy == "keep":
        row["busy_share"] = busy_share(lambda: trainer.step(x, y))
    row["link_rate"] = min(trainer.costs.link.to_host, trainer.costs.link.to_device)
    show(row)
    release(trainer)
    return row


def case(name: str, policy: str, budget: float | None, x: torch.Tensor, dtype: str) -> Case:
    limit = None if budget is None else round(budget * GIB)
    gpu = torch.cuda.get_device_name()
    size = (x.shape[0], x.shape[2])
    return Case(name, *size, dtype, policy, limit, DEFAULT_CHUNK_SIZE, gpu, environment())


def measured(
    trainer: tvdnn.Trainer,
    chosen: Case,
    step_s: float,
    losses: tuple[float, ...],
    *batch: torch.Tensor,
) -> dict[str, Any]:
    """The row of a trainer that ran; a batch is for one more step, to measure its timeline."""
    peak = trainer.peak_nbytes()
    timeline = trainer.timeline(*batch) if batch else None
    costs, budget = trainer.costs, chosen.budget_bytes
    floor = Floor(*floor_of(trainer.graph, costs, chosen.policy))
    least = bound_of(trainer.graph, costs, chosen.policy, budget=budget)
    row = measured_row(
        chosen,
        trainer.schedule,
        Measurement(step_s, peak, losses[-1], timeline),
        floor,
        predicted_s=trainer.predicted.step_s,
        bound_s=None if least is None else least.step_s,
    ).to_json() | {"losses": losses}
    if timeline is None:
        return row
    row |= {"compute_s": compute_s(trainer.schedule, costs)}
    row |= {"link_s": link_s(trainer.schedule, costs.link)}
    return row | {"wait_rate": wait_rate(trainer.schedule, timeline)}


def compute_s(schedule: Schedule, costs: Costs) -> float:
    """Seconds that the launches take by themselves, as the profiler measured them."""
    launches = (step for step in schedule.steps if step.lane is Lane.COMPUTE)
    passes = schedule.graph.passes
    return sum(costs.launch_s(passes[each.pass_index], each.stop - each.start) for each in launches)


def link_s(schedule: Schedule, link: Link) -> float:
    """Seconds that the bytes copied take at the link's measured rates, each way by itself."""
    rates = {Lane.OFFLOAD: link.to_host, Lane.PREFETCH: link.to_device}
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


def peers(
    name: str,
    x: torch.Tensor,
    y: torch.Tensor,
    dtype: str,
    others: Sequence[tuple[str, int]],
) -> Rows:
    """The same training by torch: channels_last, pure bf16 or float32 with tf32 arithmetic.

    Behind eager training come other ways, each in so many parts: AUTOCAST has float32 parameters,
    as tvdnn has.
    """
    ways = [("torch eager", 1), *others]
    return [peer(name, policy, count, x, y, dtype) for policy, count in ways]


def peer(
    name: str,
    policy: str,
    parts: int,
    x: torch.Tensor,
    y: torch.Tensor,
    dtype: str,
) -> dict[str, Any]:
    """A row; the batch goes through in `parts`, whose gradients add up."""
    kind = torch.bfloat16 if dtype == "bf16" and policy != AUTOCAST else torch.float32
    net = eager(initial(name), kind).cuda()
    inputs = x.to(memory_format=torch.channels_last, dtype=kind)
    optimizer = torch.optim.SGD(net.parameters(), lr=SGD.lr, momentum=SGD.momentum)
    called = net if policy == "torch eager" else torch.compile(net)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for part, target in zip(inputs.chunk(parts), y.chunk(parts), strict=True):
            with torch.autocast("cuda", torch.bfloat16, enabled=policy == AUTOCAST):
                loss = loss_of(name, called(part), target)
            (loss / parts).backward()
        optimizer.step()

    for _ in range(4):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()  # without the search for algorithms in the first steps
    step_s = median(timed(step) for _ in range(STEPS))
    own_copy = 0 if inputs is x else x.numel() * x.element_size()
    policy += f", {parts} parts" if parts > 1 else ""
    row = {"net": name, "batch": x.shape[0], "image_size": x.shape[2], "dtype": dtype}
    row |= {"policy": policy, "step_s": step_s, "images_per_s": x.shape[0] / step_s}
    row |= {"max_memory_allocated": torch.cuda.max_memory_allocated() - own_copy}
    row |= {"simulated": False, "infeasible": False, "hardware": torch.cuda.get_device_name()}
    show(row)
    torch._dynamo.reset()
    torch._C._cuda_clearCublasWorkspaces()
    gc.collect()
    torch.cuda.empty_cache()
    return row


def timed(run: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def resident_nbytes() -> int:
    """Host bytes of this process that lie in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


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


if __name__ == "__main__":
    main()

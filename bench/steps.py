"""Whole training steps on a GPU: policies and budgets, beside torch eager and torch.compile.

    python -m bench.steps compare --inside 2.5 -o bench/results/compare_vgg16_bf16.json
    python -m bench.steps matrix --dtype bf16 -o bench/results/vgg16_bf16.json
    python -m bench.steps deep -o bench/results/deep.json
    python -m bench.steps largest -o bench/results/largest.json
    python -m bench.steps soak -o bench/results/soak.json
    python -m bench.steps tuned -o bench/results/tuned.json
    python -m bench.steps budgets -o bench/results/budgets.json
    python -m bench.steps gist --dtype fp32 -o bench/results/gist_fp32.json
    python -m bench.steps superneurons --dtype tf32 -o bench/results/superneurons_tf32.json

`compare` trains a network by torch eager, torch.compile, that with the batch in `--parts` whose
gradients add up, keep, and auto `--inside` GiB that hold the caller's tensors too. `matrix` trains
VGG-16 (batch 256) under every vDNN policy at several budgets, `deep` VGG-416 (batch 32) and AlexNet
(batch 7168) inside 12 GiB, `largest` four times the batches that SuperNeurons reaches in as much,
`soak` runs 1,000 steps and repeats a run with random delays, `tuned` trains inside a budget before
and after `tvdnn tune`, `budgets` by swaps alone inside five budgets; `gist` trains Gist's networks
under its policies, `superneurons` two of SuperNeurons' near its floors. Losses and weights after 20
steps are compared with keep's in the same run. Each file holds its rows as JSON. Jobs side by side,
each on a GPU of its own, take turns at being timed.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch

from bench.command_line import parser_of
from bench.environment import environment
from bench.nets import batch, net_of
from bench.peers import AUTOCAST, peers
from bench.systems import gist, superneurons
from bench.timing import timed
from bench.training import (
    HOST_CAP,
    STEPS,
    Oracle,
    Rows,
    case,
    graph_of,
    measured,
    prepare,
    release,
    run,
)
from tvdnn.cli import main as tvdnn_command
from tvdnn.ops.chunk_size import LEAST_CHUNK_SIZE
from tvdnn.planner.ir.settings import ENGINE
from tvdnn.planner.make import Problem
from tvdnn.runtime.host_slab import Slab
from tvdnn.runtime.profiler import profile
from tvdnn.units import GIB

MATRIX = ("keep", "vdnn-all:m", "vdnn-all:p", "vdnn-conv:m", "vdnn-conv:p", "vdnn-dyn")
BUDGETS = (None, 12, 6, 4)
SUPERNEURONS = {  # largest batches in 12 GB: Wang et al., PPoPP 2018
    "alexnet": 1792,
    "vgg16": 224,
    "inception_v4": 240,
    "resnet50": 384,
    "resnet101": 256,
    "resnet152": 176,
}
TUNED = (("vgg16", 256, 2.5), ("resnet50", 256, 4))  # networks, batches and GiB
SWEPT = (("vgg16", 256), ("resnet50", 256), ("googlenet", 128), ("densenet121", 128))
ONE_NET = ("compare", "matrix", "soak")
LEAST, MOST = 1.2, 0.9  # budgets of `budgets`: times the floor, and what keep takes
UNTUNED = {"chunk_size": LEAST_CHUNK_SIZE, "lead": sys.maxsize, "copies": ENGINE}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--net", default="vgg16", help="any of torchvision's or ours")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--nets", nargs="+", help="of jobs of several, if not all")
    parser.add_argument("--image-size", type=int, help="the network's own unless given")
    parser.add_argument("--parts", type=int, nargs="*", default=(4, 8, 16))
    parser.add_argument("--inside", type=float, nargs="*", default=())
    parser.add_argument("--steps", type=int, default=STEPS, help="of each of our rows of `compare`")
    parser.add_argument("--host", type=float, default=HOST_CAP / GIB, help="GiB, of `--inside`")
    parser.add_argument("--dtype", choices=("bf16", "tf32", "fp32"), default="bf16")
    parser.add_argument("--policies", default=",".join(MATRIX))
    parser.add_argument("--policy", help="of `compare`, else auto, and `budgets`, else tvdnn-ilp")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--no-keep", action="store_true", help="rows of `--inside` alone")
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
        if row.get("step_s") and keep and options.job in ONE_NET:
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
    slab, oracle, policy = Slab(pinned=True), Oracle(), options.policy or "auto"
    held = sum(value.numel() * value.element_size() for value in (x, y))
    if not options.no_keep:
        with empty_caches() if options.cold else nullcontext():
            kept = run(
                options.net, "keep", None, x, y, options.dtype, slab, oracle, steps=options.steps
            )
        rows.append(kept | ({"cold_s": kept["first_step_s"]} if options.cold else {}))
    for inside in options.inside:
        budget = inside - held / GIB
        row = run(
            options.net, policy, budget, x, y, options.dtype, slab, oracle,
            host_cap=round(options.host * GIB), steps=options.steps,
        )  # fmt: skip
        rows.append(row | {"inside_bytes": round(inside * GIB)})
    note = "Memory by torch's counter, with the caller's x and y. The gradients of `parts` add up."
    if options.dtype == "bf16":
        note += " torch's parameters and momentum are bf16 except by autocast. tvdnn's are float32."
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
    note = (
        f"{STEPS} steps each from the same weights; `same bits as keep` is of losses and weights."
    )
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
    for net in options.nets or SUPERNEURONS:
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
    trainer, *_ = prepare("vgg16", "vdnn-conv", 6, x, options.dtype, slab)
    seconds, device, host = [], [], []
    for index in range(1000):
        seconds.append(timed(lambda: trainer.step(x, y)))
        if index % 100 == 99:
            device.append(torch.cuda.memory_allocated())
            host.append(resident_nbytes())
    first, last = median(seconds[:100]), median(seconds[-100:])
    losses = tuple(trainer.step(x, y).item() for _ in range(2))
    chosen = case("vgg16", "vdnn-conv", 6, x, options.dtype)
    row = measured(
        trainer.schedule, trainer.costs, chosen, median(seconds), losses, trainer.peak_nbytes()
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
    for net, size, inside in _named(TUNED, options.nets):
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
        "Each pair of rows has one set of chunk sizes; `same bits as keep` is of losses and "
        "weights, against its own keep."
    )
    return f"Tuned against default, {options.dtype}", note, rows


def budgets(options: argparse.Namespace) -> tuple[str, str, Rows]:
    """keep, and swaps alone at five budgets from near the floor to near what keep takes."""
    rows: Rows = []
    slab, policy = Slab(pinned=True), options.policy or "tvdnn-ilp"
    for net, size in _named(SWEPT, options.nets):
        x, y = batch(net, size)
        oracle = Oracle()
        kept = run(net, "keep", None, x, y, options.dtype, slab, oracle)
        rows.append(kept)
        cases = [
            (net, size, policy, budget, options.dtype, oracle)
            for budget in spaced(net, policy, x, options.dtype, kept["planned_peak_bytes"])
        ]
        del x, y
        with ProcessPoolExecutor(len(cases), mp_context=get_context("spawn")) as pool:
            rows += pool.map(swapped, *zip(*cases, strict=True))
    note = (
        f"Budgets evenly from {LEAST} times the floor of {policy} to {MOST} of what keep "
        "takes; predicted before any step ran. `same bits as keep` is of losses and weights."
    )
    return f"Swaps alone at five budgets, {options.dtype}", note, rows


def swapped(
    net: str, size: int, policy: str, budget: float, dtype: str, oracle: Oracle
) -> dict[str, Any]:
    """A row of `budgets`: plans take longest, so each is made by a process of its own."""
    return run(net, policy, budget, *batch(net, size), dtype, Slab(pinned=True), oracle)


def spaced(
    net: str, policy: str, x: torch.Tensor, dtype: str, kept: int, count: int = 5
) -> list[float]:
    """`count` budgets in GiB, from LEAST of the policy's floor to MOST of `kept` bytes."""
    graph = graph_of(net, x, dtype)
    costs = profile(graph, device=x.device, kernels="triton")
    floor, _ = Problem(graph, costs).floor(policy)
    first, last = LEAST * floor, MOST * kept
    return [(first + (last - first) * n / (count - 1)) / GIB for n in range(count)]


def _named(known: tuple[Any, ...], nets: list[str] | None) -> list[Any]:
    return [each for each in known if nets is None or each[0] in nets]


def tune(name: str, size: int, inside: float, dtype: str) -> dict[str, Any]:
    """The choice of `tvdnn tune` for one of our networks: chunk sizes and budget."""
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
    "budgets": budgets,
    "gist": gist,
    "superneurons": superneurons,
}


@contextmanager
def empty_caches() -> Iterator[None]:
    """Nothing compiled or measured before is found within."""
    with TemporaryDirectory() as folder:
        homes = {"TRITON_CACHE_DIR": f"{folder}/triton", "TVDNN_CACHE": f"{folder}/tvdnn"}
        with patch.dict(os.environ, homes):
            yield


def resident_nbytes() -> int:
    """Host bytes of this process that lie in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    main()

"""Training steps of Gist and SuperNeurons on a GPU, as jobs of bench/steps.py."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from torch import Tensor

from bench.gist_memory import BATCH, NETS
from bench.nets import batch
from bench.training import Oracle, Rows, graph_of, run
from tvdnn.planner.make import Problem
from tvdnn.planner.policies import POLICIES, policy_named
from tvdnn.planner.policies.gist import LOSSLESS, LOSSY, LOSSY_FORMS
from tvdnn.runtime.host_slab import Slab
from tvdnn.runtime.profiler import profile
from tvdnn.units import GIB

KEEP: Final = "keep"
SINGLE: Final = "keep, single layers"  # the graph of Gist's paper, as gist-* have it without :fused
STEPS: Final = 12
WAYS: Final = ("speed", "memory", "costaware")  # of SuperNeurons' recomputation
LADDERS: Final = (("alexnet", 200), ("resnet50", 64))
ABOVE_FLOOR: Final = 1.05


def gist(options: argparse.Namespace) -> tuple[str, str, Rows]:
    """Gist's networks under its policies, each beside keep of the same graph."""
    rows: Rows = []
    slab = Slab(pinned=True)
    fp8 = LOSSY_FORMS[-1]
    forms = [form for form in LOSSY_FORMS if options.dtype != "bf16" or form != LOSSY_FORMS[0]]
    graphs = (
        (SINGLE, (LOSSLESS, *(f"{LOSSY}:{form}" for form in forms))),
        (KEEP, (f"{LOSSLESS}:fused", f"{LOSSY}:fused:{fp8}")),
    )
    with single_layers():
        for net in options.nets or NETS:
            x, y = batch(net, BATCH)
            for kept, policies in graphs:
                oracle = Oracle()
                found = [
                    run(net, policy, None, x, y, options.dtype, slab, oracle, steps=STEPS)
                    for policy in (kept, *policies)
                ]
                rows += [beside(row, found[0]) for row in found]
            del x, y
    note = (
        f"Batch {BATCH}, without a budget. The slowdown is over keep of the same graph. Bytes as "
        "the paper counts them are in the table of planned bytes."
    )
    return f"Gist's networks, {options.dtype}", note, rows


def superneurons(options: argparse.Namespace) -> tuple[str, str, Rows]:
    """SuperNeurons a little above the floor of each way, without and with its tensor cache."""
    rows: Rows = []
    slab = Slab(pinned=True)
    for net, size in LADDERS:
        if options.nets and net not in options.nets:
            continue
        x, y = batch(net, size)
        oracle = Oracle()
        kept = run(net, KEEP, None, x, y, options.dtype, slab, oracle, steps=STEPS)
        rows.append(beside(kept, kept))
        for way in WAYS:
            for cache in ("", ":lru"):
                policy = f"superneurons:{way}{cache}"
                inside = ABOVE_FLOOR * floor_gib(net, policy, x, options.dtype)
                row = run(net, policy, inside, x, y, options.dtype, slab, oracle, steps=STEPS)
                rows.append(beside(row, kept))
        del x, y
    note = f"Budgets are {ABOVE_FLOOR} times the floor of the policy."
    return f"SuperNeurons' ways, {options.dtype}", note, rows


def beside(row: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """The row with its slowdown over keep's."""
    if not (row.get("step_s") and kept.get("step_s")):
        return row
    return row | {"slowdown": row["step_s"] / kept["step_s"]}


def floor_gib(net: str, policy: str, x: Tensor, dtype: str) -> float:
    """The policy's floor in GiB."""
    graph = graph_of(net, x, dtype)
    costs = profile(graph, device=x.device, kernels="triton")
    return Problem(graph, costs).floor(policy)[0] / GIB


@contextmanager
def single_layers() -> Iterator[None]:
    """`keep` on the graph of single layers is known by a name of its own."""
    policy = replace(policy_named(KEEP), name=SINGLE, fused=False)
    with patch.dict(POLICIES, {SINGLE: policy}):  # type: ignore[arg-type]
        yield

"""Writes the seconds of launches on this GPU that ship with tvdnn: `python -m bench.profiles`.

Every launch, recode and link that the cache of profiles has goes into the file. NAME:BATCH names a
network whose launches are measured first, where the cache does not have them.
"""

import argparse
import json
from pathlib import Path
from typing import Final

import torch

from bench.environment import environment
from bench.nets import net_of
from bench.training import graph_of
from tvdnn.engine.build import DEFAULT_HARDWARE
from tvdnn.graph import Graph
from tvdnn.planner.ir.costs import Profile, Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.ir.settings import COPIES, DEFAULT_POLICY
from tvdnn.planner.make import Problem
from tvdnn.runtime.known_launches import FOLDER, NOTHING, collect, dumped, file_name, sheet_of
from tvdnn.runtime.profile_cache import ProfileCache
from tvdnn.runtime.profiler import profile

NETS: Final = (
    "vgg16:256",
    "resnet50:256",
    "alexnet:256",
    "vgg16_bn:128",
    "resnet101:128",
    "densenet121:128",
    "googlenet:128",
    "inception_v3:128",
    "inception_v4:64",
    "efficientnet_b0:128",
    "convnext_tiny:64",
    "fcn_resnet50:32",
    "unet:4",
)
DTYPES: Final = ("bf16", "tf32")
GPU: Final = torch.device("cuda")


def planned_graph(name: str, batch: int, dtype: str) -> Graph:
    """The graph that `auto` plans for a training step of a network."""
    side = net_of(name).side
    graph = graph_of(name, torch.empty(batch, 3, side, side, device="meta"), dtype)
    costs = Roofline(load(DEFAULT_HARDWARE), dtype)
    return Problem(graph, costs).graph(DEFAULT_POLICY)


def measured(cases: list[str], dtypes: list[str]) -> list[tuple[Graph, Profile]]:
    """The graphs of networks and their profiles on this GPU."""
    found = []
    for case in cases:
        name, batch = case.split(":")
        for dtype in dtypes:
            graph = planned_graph(name, int(batch), dtype)
            found.append((graph, profile(graph, device=GPU, kernels="triton", known=NOTHING)))
            print(name, batch, dtype, "measured", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=NETS, help="NAME:BATCH")
    parser.add_argument("--dtypes", nargs="*", default=DTYPES)
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    gpu = torch.cuda.get_device_name()
    profiles = measured(list(options.cases), list(options.dtypes))
    cache = ProfileCache(GPU, "triton")
    links = {copies: link for copies, link in cache.links.items() if copies in COPIES}
    known = collect(profiles, sheet_of(gpu), cache.measured, links)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / file_name(gpu)
    path.write_text(json.dumps({"environment": environment(), **dumped(known)}, indent=0) + "\n")
    print(f"{path}: {len(known.samples)} launches, {len(known.rates)} rates")


if __name__ == "__main__":
    main()

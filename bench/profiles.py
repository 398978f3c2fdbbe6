"""Writes the seconds of launches on this GPU that ship with tvdnn: `python -m bench.profiles`.

Every launch, recode and link that the cache of profiles has goes into the file. Networks of the zoo
are measured first, as `auto` trains them, where the cache does not have their launches. The file is
written behind each.
"""

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Final

import torch

from bench.command_line import parser_of
from bench.environment import environment
from bench.zoo.library import make
from bench.zoo.networks import NAMES, network_named
from bench.zoo.planned import graph_of
from tvdnn.graph import Graph
from tvdnn.planner.ir.costs import Profile
from tvdnn.planner.ir.settings import COPIES, DEFAULT_POLICY
from tvdnn.runtime.compile_process import compiling_soon
from tvdnn.runtime.known_launches import (
    FOLDER,
    NOTHING,
    KnownLaunches,
    collect,
    dumped,
    file_name,
    sheet_of,
)
from tvdnn.runtime.profile_cache import ProfileCache
from tvdnn.runtime.profiler import profile

# Together they have launches of nearly every kernel; those that all else is estimated by.
NETS: Final = (
    "vgg16",
    "resnet50",
    "densenet121",
    "googlenet",
    "efficientnet_b0",
    "mobilenet_v3_large",
    "resnext50_32x4d",
    "shufflenet_v2_x2_0",
    "convnext_tiny",
    "fcn_resnet50",
)
DTYPES: Final = ("bf16", "tf32")
GPU: Final = torch.device("cuda")


def auto_graph(name: str, dtype: str) -> Graph:
    """The graph that `auto` plans for a training step of a network of the zoo."""
    network = network_named(name)
    with torch.device("meta"):
        return graph_of(network, make(network), dtype, DEFAULT_POLICY)


def measured(name: str, dtype: str) -> tuple[Graph, Profile]:
    """The graph of a network and its profile on this GPU."""
    graph = auto_graph(name, dtype)
    return graph, profile(graph, device=GPU, kernels="triton", known=NOTHING)


def known_now(profiles: Sequence[tuple[Graph, Profile]]) -> KnownLaunches:
    """All launches of the cache, with the rates of these graphs."""
    cache = ProfileCache(GPU, "triton")
    links = {copies: link for copies, link in cache.links.items() if copies in COPIES}
    return collect(profiles, sheet_of(torch.cuda.get_device_name()), cache.measured, links)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--nets", nargs="+", default=NETS, choices=NAMES)
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path, profiles = options.out / file_name(torch.cuda.get_device_name()), []
    with compiling_soon(GPU, "triton"):
        for name, dtype in product(options.nets, options.dtypes):
            profiles.append(measured(name, dtype))
            known = known_now(profiles)
            document = {"environment": environment(), **dumped(known)}
            path.write_text(json.dumps(document, indent=0) + "\n")
            print(f"{name} {dtype}: {len(known.samples)} launches, {len(known.rates)} rates")


if __name__ == "__main__":
    main()

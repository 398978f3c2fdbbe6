"""Plans alone, without a GPU: on the machines of the papers, and beside exhaustive search.

    python -m bench.plans papers -o bench/results/simulated_papers.json
    python -m bench.plans random --count 300

`papers` plans and simulates the networks of vDNN and tvDNN on a Titan X of 2015 by its data sheet.
`random` compares tvDNN's policies with exhaustive search on small random networks.
"""

import argparse
import json
import platform
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from rich.console import Console

from tests.exhaustive import exhaustive_s, small_case
from tvdnn.cli.output import stages
from tvdnn.cli.request import make_request
from tvdnn.cli.simulating import simulated
from tvdnn.planner.costs import Roofline
from tvdnn.planner.hardware import load
from tvdnn.planner.planning import make_schedule
from tvdnn.planner.simulate import simulate
from tvdnn.units import GIB

MACHINE, DTYPE = "Titan X Maxwell", "fp32"
SWAPPING = ("tvdnn-ilp", "tvdnn-heuristic")
PAPERS = {  # networks, batches, GiB of budget and policies
    ("vgg16", 256, 12): ("vdnn-dyn:sync", "vdnn-dyn", *SWAPPING, "auto"),
    ("vgg16", 256, 4): (*SWAPPING, "auto"),
    ("vgg16", 512, 4): (*SWAPPING, "auto"),
    ("alexnet", 128, 12): ("keep", "vdnn-all:m"),
    ("overfeat", 128, 12): ("keep", "vdnn-all:m"),
    ("googlenet", 128, 12): ("keep", "vdnn-all:m"),
}
NOTE = (
    f"Simulated on a {MACHINE} by its data sheet: nothing was run. Slower: than keep with memory "
    "enough. vDNN reports 18% for VGG-16(256) in 12 GB, and 89, 91 and 95% less average memory for "
    "AlexNet, OverFeat and GoogLeNet (128) than its baseline, which frees nothing."
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("job", choices=("papers", "random"))
    parser.add_argument("--count", type=int, default=300, help="networks of `random`")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.job == "random":
        compare(options.count)
        return
    environment = {"python": platform.python_version(), "torch": torch.__version__}
    document = {
        "title": "On the machine of the papers",
        "note": NOTE,
        "environment": environment,
        "rows": list(papers()),
    }
    text = json.dumps(document, indent=1) + "\n"
    options.output.write_text(text) if options.output else print(text)


def papers() -> Iterator[dict[str, Any]]:
    """A row for each network, batch, budget and policy of the papers."""
    console, costs = Console(stderr=True), Roofline(load(MACHINE), DTYPE)
    for (net, batch, gib), policies in PAPERS.items():
        request = make_request(net, batch, None, DTYPE, None, None)
        with stages(console, f"{net}({batch})") as report:
            kept = simulated(request, costs, "keep", None, report).row
            for policy in policies:
                row = simulated(request, costs, policy, gib * GIB, report).row
                slower = row.predicted_s and kept.predicted_s and row.predicted_s / kept.predicted_s
                yield row.to_json() | {"slowdown": slower}


def compare(count: int) -> None:
    """Print how tvDNN's policies stand to the best of all plans, network by network."""
    shares: dict[str, list[float]] = {policy: [] for policy in SWAPPING}
    seed = 0
    while len(shares[SWAPPING[0]]) < count:
        case, seed = small_case(seed), seed + 1
        if case is None:
            continue
        graph, costs, budget = case
        best_s = exhaustive_s(graph, costs, budget)
        for policy in SWAPPING:
            schedule = make_schedule(graph, costs, policy=policy, budget=budget)
            shares[policy].append(simulate(schedule, costs).step_s / best_s)
        print(seed - 1, *(f"{policy} {found[-1]:.4f}" for policy, found in shares.items()))
    for policy, found in shares.items():
        within = mean(share <= 1.01 for share in found)
        print(f"{policy}: {within:.1%} within 1% of the best, {max(found):.3f} at most")


if __name__ == "__main__":
    main()

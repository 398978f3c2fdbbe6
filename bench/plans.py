"""Plans alone, without a GPU: on the machines of the papers, and beside exhaustive search.

    python -m bench.plans papers -o bench/results/plans_papers.json
    python -m bench.plans random -o bench/results/plans_random.json

`papers` plans and simulates the networks of vDNN and tvDNN on a Titan X of 2015 by its data sheet.
`random` compares tvDNN's policies with exhaustive search on small random networks.
"""

import argparse
import itertools
import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from rich.console import Console

from tests.exhaustive import exhaustive_s, small_case
from tests.granularity import units_of_one
from tvdnn.cli.output import stages
from tvdnn.cli.request import make_request
from tvdnn.cli.simulating import simulated
from tvdnn.graph import Graph
from tvdnn.planner.costs import Costs, Roofline
from tvdnn.planner.hardware import load
from tvdnn.planner.planning import make_schedule
from tvdnn.planner.simulate import simulate
from tvdnn.units import GIB

MACHINE, DTYPE = "Titan X Maxwell", "fp32"
SWAPPING = ("tvdnn-ilp", "tvdnn-heuristic")
NEAR_BEST, NEAR_ILP = 1.01, 1.05
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


RANDOM_NOTE = (
    "Networks of two to four convolutions in a few sections, on a link drawn at random, inside a "
    "budget between the floor and what keep takes. Exhaustive search simulates any number of "
    "sections out of each map, three times from which on they return, and three caps. Below 1 a "
    "policy finds what is outside of that. Simulated: nothing was run."
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("job", choices=("papers", "random"))
    parser.add_argument("--count", type=int, default=300, help="networks of `random`")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.job == "papers":
        document = {"title": "On the machine of the papers", "note": NOTE, "rows": list(papers())}
    else:
        rows = compared(options.count)
        document = {"title": "Beside exhaustive search", "note": RANDOM_NOTE, "rows": rows}
    document["environment"] = {"python": platform.python_version(), "torch": torch.__version__}
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


def compared(count: int) -> list[dict[str, Any]]:
    """A row for each of tvDNN's policies: how it stands to the best plans of random networks."""
    cases = itertools.islice(filter(None, map(small_case, itertools.count())), count)
    with units_of_one():
        found = [_shares(*case) for case in cases]
    optimal = SWAPPING[0]
    return [
        {
            "net": "random",
            "batch": len(found),
            "policy": policy,
            "best_within": mean(each[policy] <= NEAR_BEST for each in found),
            "worst_to_best": max(each[policy] for each in found),
            "ilp_within": mean(each[policy] <= NEAR_ILP * each[optimal] for each in found),
            "worst_to_ilp": max(each[policy] / each[optimal] for each in found),
        }
        for policy in SWAPPING
    ]


def _shares(graph: Graph, costs: Costs, budget: int) -> dict[str, float]:
    """By policy, the seconds of its step in those of the best of all plans; printed as well."""
    best_s = exhaustive_s(graph, costs, budget)
    schedules = {each: make_schedule(graph, costs, policy=each, budget=budget) for each in SWAPPING}
    shares = {each: simulate(made, costs).step_s / best_s for each, made in schedules.items()}
    print(*(f"{policy} {share:.4f}" for policy, share in shares.items()), file=sys.stderr)
    return shares


if __name__ == "__main__":
    main()

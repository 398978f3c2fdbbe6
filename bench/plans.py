"""Plans alone, without a GPU: on the machines of the papers, and beside exhaustive search.

    python -m bench.plans papers -o bench/results/plans_papers.json
    python -m bench.plans random -o bench/results/plans_random.json
    python -m bench.plans sweeps -o bench/results/plans_sweeps.json

`papers` plans and simulates the networks of vDNN and tvDNN on a Titan X of 2015 by its data sheet.
`random` compares tvDNN's policies with exhaustive search on small random networks.
`sweeps` plans networks at budgets from the floor to what keep takes, on an H200 by its data sheet.
"""

import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console

from bench.command_line import parser_of
from bench.environment import software
from bench.granularity import units_of_one
from tests.support.exhaustive import exhaustive_s, small_case
from tvdnn.cli.output import stages
from tvdnn.experiment.processes import Processes
from tvdnn.experiment.request import make_problem, make_request
from tvdnn.experiment.simulate_request import Outcome, simulated
from tvdnn.experiment.sweep import swept_rows
from tvdnn.graph import Graph
from tvdnn.planner.ir.costs import Costs, Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.make import make_schedule
from tvdnn.planner.policies import POLICIES
from tvdnn.planner.timing.simulate import simulate
from tvdnn.report.rows import Row
from tvdnn.units import GIB

MACHINE, DTYPE = "Titan X Maxwell", "fp32"
OFFLOADING = tuple(n for n, each in POLICIES.items() if each.searches and not each.recomputes)
BEST, NEAR_BEST, NEAR_ILP = "best", 1.01, 1.05
PAPERS = {  # networks, batches, GiB of budget and policies
    ("vgg16", 256, 12): ("vdnn-dyn:sync", "vdnn-dyn", *OFFLOADING, "auto"),
    ("vgg16", 256, 4): (*OFFLOADING, "auto"),
    ("vgg16", 512, 4): (*OFFLOADING, "auto"),
    ("alexnet", 128, 12): ("keep", "vdnn-all:m"),
    ("overfeat", 128, 12): ("keep", "vdnn-all:m"),
    ("googlenet", 128, 12): ("keep", "vdnn-all:m"),
}
NOTE = (
    f"Simulated on a {MACHINE} by its data sheet: nothing was run. Slower: than keep with memory "
    "enough. vDNN reports 18% for VGG-16(256) in 12 GB, and 89, 91 and 95% less average memory for "
    "AlexNet, OverFeat and GoogLeNet (128) than its baseline, which frees nothing. Parameters and "
    "their momentum alone are 39, 46 and 1% of that baseline, and stay: so its figures can be of "
    "what vDNN manages alone. The column for maps leaves parameters out on both sides."
)
SWEPT_BY, SWEPT_ON, SWEPT_IN = "tvdnn-heuristic", "H200", "bf16"
SWEEPS = {  # networks and batches, and how many budgets take minutes to plan
    ("vgg16", 256): 50,
    ("googlenet", 256): 20,
    ("resnet50", 256): 20,
    ("resnet101", 256): 8,
    ("densenet121", 128): 8,
    ("inception_v4", 128): 8,
}
PARTS = {"floor": 0.0, "quarter": 0.25, "half": 0.5, "three_quarters": 0.75}
SWEEPS_NOTE = (
    f"Simulated on an {SWEPT_ON} by its data sheet: nothing was run. So many budgets evenly from "
    "the floor to what keep takes. A plan for less memory is one for more: no time grows with the "
    "budget, and no peak is above it. Slower: than with memory enough, at the floor and at shares "
    "of the way from there; above the bound: at the same budgets."
)
RANDOM_NOTE = (
    "Networks of two to four convolutions in a few sections, on a link drawn at random, inside a "
    "budget between the floor and what keep takes. Exhaustive search simulates any number of "
    "sections out of each map, three times from which on they return, and three caps. Below 1 a "
    "policy finds what is outside of that. Simulated: nothing was run."
)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("job", choices=("papers", "random", "sweeps"))
    parser.add_argument("--count", type=int, default=300, help="networks of `random`")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.job == "papers":
        document = {"title": "On the machine of the papers", "note": NOTE, "rows": list(papers())}
    elif options.job == "sweeps":
        document = {"title": "Over budgets", "note": SWEEPS_NOTE, "rows": list(sweeps())}
    else:
        rows = compared(options.count)
        document = {"title": "Beside exhaustive search", "note": RANDOM_NOTE, "rows": rows}
    document["environment"] = software()
    text = json.dumps(document, indent=1) + "\n"
    options.output.write_text(text) if options.output else print(text)


def papers() -> Iterator[dict[str, Any]]:
    """A row for each network, batch, budget and policy of the papers."""
    console, costs = Console(stderr=True), Roofline(load(MACHINE), DTYPE)
    for (net, batch, gib), policies in PAPERS.items():
        request = make_request(net, batch, None, DTYPE, None, None)
        with stages(console, f"{net}({batch})") as report:
            problem = make_problem(request, costs)
            kept = simulated(request, problem, "keep", None, report).row
            for policy in policies:
                outcome = simulated(request, problem, policy, gib * GIB, report)
                row = outcome.row
                slower = row.predicted_s and kept.predicted_s and row.predicted_s / kept.predicted_s
                yield row.to_json() | {"slowdown": slower, "maps_saved": _maps_saved(outcome)}


def _maps_saved(outcome: Outcome) -> float | None:
    """The share of the baseline's average bytes that is saved, without weights and their state."""
    row, schedule = outcome.row, outcome.schedule
    if schedule is None or row.avg_bytes is None:
        return None
    fixed = schedule.graph.fixed_nbytes
    return 1.0 - (row.avg_bytes - fixed) / (row.baseline_bytes - fixed)


def sweeps() -> Iterator[dict[str, Any]]:
    """A row for each network that is planned over budgets, side by side, a process each."""
    with ProcessPoolExecutor() as pool:
        yield from pool.map(sweep, SWEEPS)


def sweep(case: tuple[str, int]) -> dict[str, Any]:
    """The row of a network and batch."""
    costs = Roofline(load(SWEPT_ON), SWEPT_IN)
    request = make_request(*case, None, SWEPT_IN, None, None)
    here = Processes(1)
    with stages(Console(stderr=True), "{}({})".format(*case)) as report:
        return swept_row(swept_rows(request, costs, [SWEPT_BY], SWEEPS[case], report, here))


def swept_row(rows: Sequence[Row]) -> dict[str, Any]:
    """Seconds and bounds by budget, and how they stand at shares of the way from the floor."""
    seconds = [float(row.predicted_s or inf) for row in rows]
    bounds = [row.bound_s for row in rows]
    assert all(less <= more for more, less in itertools.pairwise(seconds))
    assert all((row.planned_peak_bytes or 0) <= (row.budget_bytes or 0) for row in rows)
    at = {name: round(share * (len(rows) - 1)) for name, share in PARTS.items()}
    above = {name: bounds[place] for name, place in at.items()}
    return {
        "net": rows[0].net,
        "batch": rows[0].batch,
        "dtype": rows[0].dtype,
        "policy": rows[0].policy,
        "hardware": rows[0].hardware,
        "simulated": True,
        "num_budgets": len(rows),
        "budgets": [row.budget_bytes for row in rows],
        "seconds": seconds,
        "bounds": bounds,
        **{f"slower_{name}": seconds[place] / seconds[-1] for name, place in at.items()},
        **{f"above_{name}": bound and seconds[at[name]] / bound for name, bound in above.items()},
    }


def compared(count: int) -> list[dict[str, Any]]:
    """A row for each of tvDNN's policies: how it stands to the best plans of random networks."""
    cases = itertools.islice(filter(None, map(small_case, itertools.count())), count)
    with units_of_one():
        found = [_seconds(*case) for case in cases]
    return [compared_row(policy, found) for policy in OFFLOADING]


def compared_row(policy: str, found: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Seconds of the policy's steps in those of the best plans, and in those of the ILP."""
    to_best = [each[policy] / each[BEST] for each in found]
    to_ilp = [each[policy] / each[OFFLOADING[0]] for each in found]
    return {
        "net": "random",
        "batch": len(found),
        "policy": policy,
        "best_within": mean(share <= NEAR_BEST for share in to_best),
        "worst_to_best": max(to_best),
        "ilp_within": mean(share <= NEAR_ILP for share in to_ilp),
        "worst_to_ilp": max(to_ilp),
    }


def _seconds(graph: Graph, costs: Costs, budget: int) -> dict[str, float]:
    """Seconds of a step by policy, and of the best of all plans; printed as well."""
    seconds = {BEST: exhaustive_s(graph, costs, budget)}
    for policy in OFFLOADING:
        schedule = make_schedule(graph, costs, policy=policy, budget=budget)
        seconds[policy] = simulate(schedule, costs).step_s
    print(*(f"{name} {each:.6g}" for name, each in seconds.items()), file=sys.stderr)
    return seconds


if __name__ == "__main__":
    main()

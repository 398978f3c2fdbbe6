"""auto beside every other exact policy, on ten networks at ten budgets, planned without a GPU.

    python -m bench.planned_budgets -o bench/results/plans/budgets.json
    python -m bench.planned_budgets --nets unet googlenet --policies auto tvdnn-heuristic

`planned_networks.json` names the networks. Budgets lie evenly between what keep takes and a fifth
of that, or 1.15 times auto's floor where that is more. A row is one network, budget and policy: its
simulated seconds, those of keep, the lower bound, the relaxed optimum of its programs, and the CPU
seconds that planning took. Networks and policies are planned side by side, and rows are written as
they come.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.command_line import parser_of
from bench.environment import software
from bench.large_plans import KEEP, MACHINE, Case, graph_of
from tvdnn.errors import BudgetError
from tvdnn.planner.ir.costs import Roofline
from tvdnn.planner.ir.hardware import load
from tvdnn.planner.make import Problem
from tvdnn.planner.policies import POLICIES
from tvdnn.planner.timing.simulate import simulate
from tvdnn.units import MIB

AUTO: Final = "auto"
NETWORKS: Final = Path(__file__).parent / "planned_networks.json"
BUDGETS: Final = 10
LEAST_SHARE: Final = 1 / 5  # of what keep takes
ABOVE_FLOOR: Final = 1.15  # times auto's floor


def main() -> None:
    known = json.loads(NETWORKS.read_text())
    parser = parser_of(__doc__)
    parser.add_argument("--nets", nargs="+", default=[each["net"] for each in known])
    exact = [name for name, each in POLICIES.items() if not each.lossy]
    parser.add_argument("--policies", nargs="+", default=exact, choices=POLICIES)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    networks = [each for each in known if each["net"] in options.nets]
    jobs = [(network, policy) for policy in options.policies for network in networks]
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for done in as_completed([pool.submit(rows_of, *job) for job in jobs]):
            rows += done.result()
            rows.sort(key=_place)
            document = {"title": "auto at ten budgets", "rows": rows, "environment": software()}
            text = json.dumps(document, indent=1) + "\n"
            if options.output:
                options.output.write_text(text)
    if not options.output:
        print(text)


def _place(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["net"], row["policy"], row["budget_bytes"]


def budgets_between(floor: int, most: int) -> list[int]:
    """Ten budgets from auto's floor and some more to what keep takes."""
    least = max(LEAST_SHARE * most, ABOVE_FLOOR * floor)
    return [round(least + (most - least) * i / (BUDGETS - 1)) for i in range(BUDGETS)]


class Kept(NamedTuple):
    """keep of a network, and the budgets below it."""

    peak_nbytes: int
    step_s: float
    budgets: list[int]


@cache
def _kept(network: frozenset[tuple[str, Any]]) -> Kept:
    """By the items of a network. Its floor takes as long as some plans."""
    keep, auto = (_problem(dict(network), policy) for policy in (KEEP, AUTO))
    schedule = keep.schedule(KEEP)
    peak = schedule.peak_nbytes
    budgets = budgets_between(auto.floor(AUTO)[0], peak)
    return Kept(peak, simulate(schedule, keep.costs).step_s, budgets)


def rows_of(
    network: dict[str, Any], policy: str, numbers: Sequence[int] = range(BUDGETS)
) -> list[dict[str, Any]]:
    """The rows of a network and policy at these of its budgets."""
    return list(_rows_of(network, policy, numbers))


def _rows_of(
    network: dict[str, Any], policy: str, numbers: Sequence[int]
) -> Iterator[dict[str, Any]]:
    problem, kept = _problem(network, policy), _kept(frozenset(network.items()))
    for budget in map(kept.budgets.__getitem__, numbers):
        within = problem.within(budget)
        begun_s = time.process_time()
        try:
            schedule = within.schedule(policy)
        except BudgetError as error:
            found: dict[str, Any] = {"floor_bytes": error.floor_nbytes}
        else:
            step_s, peak = simulate(schedule, problem.costs).step_s, schedule.peak_nbytes
            found = {"predicted_s": step_s, "planned_peak_bytes": peak}
            report = schedule.plan.optimality
            found["relaxed_optimum_s"] = report.bound_s if report else None
        plan_cpu_s = time.process_time() - begun_s
        bound = within.bound(policy)
        yield {
            **network,
            "policy": policy,
            "hardware": MACHINE,
            "simulated": True,
            "budget_bytes": budget,
            "kept_peak_bytes": kept.peak_nbytes,
            "kept_s": kept.step_s,
            "bound_s": bound.step_s if bound else None,
            "plan_cpu_s": plan_cpu_s,
            **found,
        }


def _problem(network: dict[str, Any], policy: str) -> Problem:
    chunk_size = network["chunk_mib"] * MIB
    settings = network["net"], network["batch"], network["dtype"], policy, 1.0, chunk_size
    graph = graph_of(Case(*settings, side=network.get("side")))
    return Problem(graph, Roofline(load(MACHINE), graph.dtype))


if __name__ == "__main__":
    main()

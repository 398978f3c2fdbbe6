"""Digests of schedules, to tell whether moving code has changed any.

    python -m bench.digests -o bench/results/plans/digests.json
    python -m bench.digests --against bench/results/plans/digests.json

Twelve networks, six policies and three budgets, planned on an H200 by its data sheet. A digest is
of what runs: the steps in their order with the addresses that they read and write and the steps
that they wait for, and what lies in the arena when. Names are no part of it. A budget is a share of
keep's peak; where that is below the policy's floor, it is as far between the floor and the peak.
`--against` exits with 1 where one differs. Integer programs may end elsewhere with another version
of SciPy: compare digests of one environment. 40 minutes of a core; a process to a core.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, Final

import scipy

from bench.command_line import parser_of
from bench.environment import software
from bench.large_plans import Case, task_of
from tvdnn.errors import BudgetError
from tvdnn.graph import RAW
from tvdnn.planner.ir.schedule import Operand, Schedule
from tvdnn.planner.make import make_schedule
from tvdnn.units import MIB

NETS: Final = {
    "lenet5": (512, "fp32"),
    "alexnet": (256, "bf16"),
    "nin": (128, "bf16"),
    "overfeat": (128, "fp32"),
    "vgg16": (64, "bf16"),
    "vgg16_bn": (32, "bf16"),
    "resnet18": (128, "tf32"),
    "resnet50": (64, "bf16"),
    "densenet121": (16, "bf16"),
    "googlenet": (64, "tf32"),
    "inception_v3": (16, "bf16"),
    "unet": (4, "bf16"),
}
POLICIES: Final = ("vdnn-all", "vdnn-conv:m", "vdnn-dyn", "tvdnn-heuristic", "tvdnn-ilp", "auto")
SHARES: Final = (0.3, 0.5, 0.75)  # of the peak of keep


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--against", type=Path, help="digests that these must equal")
    options = parser.parse_args()
    found = dict(sorted(digests()))
    document = {"digests": found, "environment": software() | {"scipy": scipy.__version__}}
    if options.output:
        options.output.write_text(json.dumps(document, indent=1) + "\n")
    if options.against:
        known = json.loads(options.against.read_text())["digests"]
        other = [name for name in known if found.get(name) != known[name]]
        print(f"{len(known) - len(other)} of {len(known)} are the same", *other, sep="\n")
        sys.exit(1 if other else 0)


def digests() -> Iterator[tuple[str, str]]:
    """The name of each case and its digest."""
    cases = [
        Case(net, *NETS[net], policy, share, 4 * MIB)
        for share, policy, net in product(SHARES, reversed(POLICIES), reversed(NETS))
    ]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for case, found in zip(cases, pool.map(digest_of, cases), strict=True):
            yield f"{case.net}({case.batch}) {case.policy} {case.budget}", found


def digest_of(case: Case) -> str:
    graph, costs, _, budget = task_of(case)
    try:
        schedule = make_schedule(graph, costs, policy=case.policy, budget=budget)
    except BudgetError as error:
        above = int(case.budget * (budget / case.budget - error.floor_nbytes))
        if above <= 0:
            return f"floor {error.floor_nbytes}"
        budget = error.floor_nbytes + above
        schedule = make_schedule(graph, costs, policy=case.policy, budget=budget)
    return hashlib.sha256(json.dumps(told(schedule)).encode()).hexdigest()[:24]


def told(schedule: Schedule) -> list[Any]:
    """The fields of a schedule that decide what runs, without names."""
    steps = [
        [
            int(step.lane),
            step.action.value,
            step.pass_index,
            [step.start, step.stop],
            [where(operand) for operand in step.reads],
            [where(operand) for operand in step.writes],
            step.waits,
            step.recompute,
        ]
        for step in schedule.steps
    ]
    stays = [[stay.section, stay.offset, stay.nbytes, stay.steps] for stay in schedule.residencies]
    sizes = [schedule.phase_split, schedule.arena_nbytes, schedule.slab_nbytes]
    return [steps, stays, *sizes, schedule.pages]


def where(operand: Operand) -> list[Any]:
    place = [operand.space.value, operand.start, operand.stop, operand.offset, operand.nbytes]
    return place if operand.form == RAW else [*place, str(operand.form)]


if __name__ == "__main__":
    main()

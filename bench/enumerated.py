"""auto beside all combinations of means on small drawn networks, planned without a GPU.

    python -m bench.enumerated -o bench/results/plans/enumerated.json
    python -m bench.enumerated --first 7 --count 1 --most 5000

A row is one network and budget. `ratio` is auto's simulated seconds in those of the fastest plan
that enumeration finds. Over each gap of a map that plan lets the map stay, leave the device, be
made again or have a code, which may leave as well. Enumeration looks for plans that take up to
1.002 times auto's seconds. Where it finds none, `ratio` is null. `complete` is false where it ended
after `--most` simulated plans: faster plans may be left, and no ratio of such a row is a proof.
`fits` is false where auto has no plan. `wins` are the means without which every plan is slower than
the fastest, by any part of a second.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any, Final

from bench.command_line import parser_of
from bench.environment import software
from bench.granularity import units_of_one
from tests.support.drawn_networks import SHARES, DrawnCase, budgets_of, drawn_case
from tests.support.enumerated import CODED, CODED_AWAY, MEANS, Enumerated, Enumeration
from tvdnn.errors import BudgetError
from tvdnn.graph import RAW
from tvdnn.planner.ir.schedule import Schedule
from tvdnn.planner.make import make_schedule
from tvdnn.planner.timing.simulate import simulate

COUNT: Final = 200
MOST: Final = 1000  # plans that are simulated for a row: 10 to 20 s
MOST_FOR_WINS: Final = 0.5  # of these, without each of the means
NEAR: Final = 1.02  # times the fastest plan
SLOWER: Final = 1 + 1e-9  # times its seconds
TIE: Final = 1.002  # times auto's seconds: slower plans are left out


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=COUNT, help="seeds")
    parser.add_argument("--most", type=int, default=MOST, help="plans simulated for a row")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with units_of_one():
        for seed in range(options.first, options.first + options.count):
            for row in rows_of(drawn_case(seed), options.most):
                rows.append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
    text = json.dumps(document_of(rows), indent=1) + "\n"
    options.output.write_text(text) if options.output else print(text)


def document_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The rows, and how many of them auto is near in, by budget."""
    summary = {
        "networks": len({row["seed"] for row in rows}),
        "rows": len(rows),
        "complete": sum(row["complete"] for row in rows),
        "within": {str(share): _within(rows, share) for share in SHARES},
        "wins": dict(Counter(means for row in rows for means in row["wins"])),
    }
    title = "auto beside all combinations of means"
    return {"title": title, "summary": summary, "rows": rows, "environment": software()}


def _within(rows: Sequence[dict[str, Any]], share: float) -> dict[str, int]:
    """How many rows of a budget auto is near in, of those that have any plan."""
    of_share = [row for row in rows if row["share"] == share and (row["fits"] or row["best"])]
    near = [row for row in of_share if row["fits"] and (row["ratio"] or 0) <= NEAR]
    return {
        "rows": len(of_share),
        "near": len(near),
        "near_and_complete": sum(row["complete"] for row in near),
    }


def rows_of(case: DrawnCase, most: int) -> Iterator[dict[str, Any]]:
    """A row for each budget of a network."""
    enumeration = Enumeration(case.graph, case.costs)
    for share, capacity in zip(SHARES, budgets_of(case, enumeration), strict=True):
        begun_s = time.process_time()
        try:
            schedule = make_schedule(
                case.graph, case.costs, budget=case.graph.fixed_nbytes + capacity
            )
        except BudgetError:
            schedule, auto_s = None, inf
        else:
            auto_s = simulate(schedule, case.costs).step_s
        planned_s = time.process_time()
        best = enumeration.fastest(capacity, TIE * auto_s, most=most)
        won = list(_wins(enumeration, capacity, best, round(MOST_FOR_WINS * most)))
        yield {
            "seed": case.seed,
            "kind": case.kind,
            "gaps": enumeration.num_gaps,
            "sections": max(each.num_sections for each in case.graph.buffers.values()),
            "link_share": case.link_share,
            "flops": case.flops,
            "share": share,
            "arena_bytes": capacity,
            "auto_s": auto_s if schedule else None,
            "best_s": best.seconds if best.schedule else None,
            "ratio": auto_s / best.seconds if schedule and best.schedule else None,
            "fits": schedule is not None,
            "complete": best.complete,
            "simulated": best.num_simulated,
            "means": sorted(best.means),
            "wins": won,
            "best": _described(best.schedule),
            "auto": _described(schedule),
            "auto_cpu_s": planned_s - begun_s,
            "enumeration_cpu_s": time.process_time() - planned_s,
        }


def _wins(enumeration: Enumeration, capacity: int, best: Enumerated, most: int) -> Iterator[str]:
    """The means of the fastest plan without which every plan is slower. Codes away are codes."""
    for means in MEANS:
        if means in best.means:
            without = frozenset((means, CODED_AWAY) if means == CODED else (means,))
            below_s = SLOWER * best.seconds
            other = enumeration.fastest(capacity, below_s, without=without, most=most)
            if other.schedule is None and other.complete:
                yield means


def _described(schedule: Schedule | None) -> dict[str, Any] | None:
    """What a plan makes again, codes and moves, in names."""
    if schedule is None:
        return None
    plan, passes = schedule.plan, schedule.graph.passes
    names = [passes[slot.pass_index].name + " again" * slot.recompute for slot in plan.slots]
    bridges = [
        {
            "buffer": each.buffer,
            "sections": [each.first, each.first + each.count],
            "over": [names[each.after], names[each.needed_by]],
            **({} if each.form == RAW else {"form": each.form}),
            **({"tier": each.tier} if each.tier else {}),
        }
        for each in plan.bridges
    ]
    again = [name for slot, name in zip(plan.slots, names, strict=True) if slot.recompute]
    return {"again": again, "bridges": bridges}


if __name__ == "__main__":
    main()

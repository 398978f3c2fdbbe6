"""auto's step on a GPU at shares of the memory that keep takes, beside keep in the same process.

    python -m bench.frontier -o bench/results/plans/frontier_h100.json
    python -m bench.frontier --nets unet --shares 0.25 0.5 -o rows.json

Five networks in bf16 on random data. A row is one network and budget: the measured step by the plan
that the first steps led to, what that plan predicted, the relaxed optimum of its linear programs,
the planned and the measured peak, and whether losses and weights have the bits of keep's. Rows are
written as they are measured; rows that the file has already stay. Processes side by side, each for
other networks, plan at once and take turns for all else.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch

import tvdnn
from bench.command_line import parser_of
from bench.environment import software
from bench.same_steps import digest_of, labels, step_s
from bench.turn import Turn
from tvdnn import models
from tvdnn.errors import BudgetError
from tvdnn.units import MIB

# Samples of a batch, pixels of a side (None: the network's own) and MiB of a section.
NETS: Final = {
    "vgg16": (256, None, 16),
    "resnet50": (256, None, 64),
    "densenet121": (128, None, 64),
    "googlenet": (128, None, 16),
    "unet": (8, 1024, 32),
}
SHARES: Final = (0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.75, 0.9)
STEPS, REPEATS = 12, 9

Row = dict[str, Any]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=NETS)
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    known = json.loads(options.output.read_text())["rows"] if options.output.exists() else []
    environment = {
        **software(),
        "gpu": torch.cuda.get_device_name(),
        "commit": os.environ.get("TVDNN_COMMIT", "unknown"),
    }
    for name in options.nets:
        for row in rows_of(name, options.shares):
            print(json.dumps(row), file=sys.stderr, flush=True)
            known.append({**row, "environment": environment})
            document = {"title": "auto at shares of keep's memory", "rows": known}
            options.output.write_text(json.dumps(document, indent=1) + "\n")


def rows_of(name: str, shares: list[float]) -> Iterator[Row]:
    """keep's row, then auto's at each share of its peak."""
    kept = measured(name, "keep", None)
    yield kept
    for share in shares:
        budget = int(share * kept["planned_peak_bytes"])
        try:
            row = measured(name, "auto", budget)
        except BudgetError as error:
            yield {"net": name, "policy": "auto", "share": share, "floor": error.floor_nbytes}
            continue
        row["share"], row["times_keep"] = share, row["step_s"] / kept["step_s"]
        row["equal"] = row["digest"] == kept["digest"]
        yield row


def measured(name: str, policy: str, budget: int | None) -> Row:
    """A row of a network under a policy."""
    batch, side, chunk = NETS[name]
    turn = Turn()
    turn.take()
    torch.manual_seed(1)
    channels, *sides = models.image_shape(name)
    with torch.device("cuda"):
        net = models.by_name(name)
        x = torch.randn(batch, channels, *([side, side] if side else sides))
        y = labels(net, x)
    optimizer = tvdnn.optim.SGD(lr=1e-3, momentum=0.9)
    plan = {"policy": policy, "budget": budget, "chunk_size": chunk * MIB, "progress": turn}
    waited_s, begun_s = turn.waited_s, time.perf_counter()
    try:
        trainer = tvdnn.Trainer(net, x, optimizer=optimizer, dtype="bf16", **plan)
    except BudgetError:
        turn.give()
        raise
    made_s = time.perf_counter() - begun_s - (turn.waited_s - waited_s)
    first_predicted_s = trainer.predicted.step_s
    losses = [trainer.step(x, y).clone() for _ in range(STEPS)]
    turn.give()
    trainer.settle()
    turn.take()
    losses += [trainer.step(x, y).clone() for _ in range(STEPS)]
    digest = digest_of([*losses, *net.state_dict().values()])
    seconds = median(step_s(trainer, x, y) for _ in range(REPEATS))
    schedule, report = trainer.schedule, trainer.plan.optimality
    row = {
        "net": name,
        "batch": batch,
        "side": side or sides[0],
        "dtype": "bf16",
        "chunk_mib": chunk,
        "policy": policy,
        "budget_bytes": budget,
        "planned_peak_bytes": schedule.peak_nbytes,
        "measured_peak_bytes": trainer.peak_nbytes(),
        "in_pages": schedule.pages is not None,
        "step_s": seconds,
        "predicted_s": trainer.predicted.step_s,
        "first_predicted_s": first_predicted_s,  # by the first plan
        "relaxed_optimum_s": report.bound_s if report else None,
        "made_s": made_s,  # tracing, profiling, planning and capture
        "digest": digest,
    }
    trainer.close()
    del trainer, net
    torch.cuda.empty_cache()
    turn.give()
    return row


if __name__ == "__main__":
    main()

"""Steps whose sections rest in several tiers: host memory alone, and a file behind little of it.

    python -m bench.tiers [--net vgg16 --batch 64 --host 0.25 --folder /tmp] -o F

The first row is keep's. Each case, a policy and the GiB of its device budget if it has one, has two
rows: by copies to the host, and by copies of which most go on from little pinned memory to a file
in `--folder`. `predicted_s` is by the rates that the profiler measured, `calibrated_s` by those of
one measured step. Losses and weights are compared with keep's after the same steps. Writes the rows
as JSON.
"""

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch

from bench.command_line import parser_of
from bench.environment import environment
from bench.nets import batch, net_of
from bench.training import Oracle, Rows, digest, prepare, release
from tvdnn.engine import Trainer
from tvdnn.planner.ir.plan import FILE
from tvdnn.planner.ir.schedule import Lane, Schedule
from tvdnn.planner.ir.timeline import Timeline
from tvdnn.planner.timing.calibrate import calibrate
from tvdnn.planner.timing.simulate import simulate
from tvdnn.runtime.host_slab import Slab
from tvdnn.units import GIB

WARM: Final = 2  # steps before the timed ones
STEPS: Final = 8
RATES: Final = {Lane.FILE_WRITE: "write", Lane.FILE_READ: "read"}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--net", default="vgg16")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--dtype", choices=("bf16", "tf32"), default="bf16")
    parser.add_argument("--host", type=float, default=0.25, help="GiB of pinned memory")
    parser.add_argument("--cases", nargs="+", default=["tvdnn-heuristic@2", "vdnn-all"])
    parser.add_argument("--folder", type=Path, default=Path("/tmp"))
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    title = f"{net_of(options.net).title}, batch {options.batch}, {options.dtype}"
    document = {"title": title, "environment": environment(), "rows": (rows := Rows())}
    for row in rows_of(options):
        rows.append(row)
        options.output.write_text(json.dumps(document, indent=1) + "\n")


def rows_of(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row of keep, and two of each policy: without and with a file."""
    x, y = batch(options.net, options.batch)
    oracle = Oracle()
    ways: list[tuple[str, float | None, dict[str, Any]]] = [("keep", None, {})]
    little = {"host_cap": round(options.host * GIB), "file": options.folder}
    for case in options.cases:
        policy, _, inside = case.partition("@")
        budget = float(inside) if inside else None
        ways += [(policy, budget, {}), (policy, budget, little)]
    for policy, inside, tiers in ways:
        slab = Slab(pinned=True)
        trainer, net, ready_s = prepare(
            options.net, policy, inside, x, options.dtype, slab, **tiers
        )
        row = {"net": options.net, "batch": options.batch, "dtype": options.dtype}
        row |= {"policy": policy, "ready_s": ready_s, **timed(trainer, x, y)}
        losses = [trainer.step(x, y).item() for _ in range(2)]
        row |= {"equal": oracle.equals(losses, digest(net))}
        print(row, flush=True)
        yield row
        release(trainer)
        slab.close()


def timed(trainer: Trainer, x: torch.Tensor, y: torch.Tensor) -> Mapping[str, Any]:
    """What the steps of a trainer take, beside what was predicted."""
    for _ in range(WARM):
        trainer.step(x, y)
    torch.cuda.synchronize()
    seconds, busy_s = [], time.process_time()
    begin_s = time.perf_counter()
    for _ in range(STEPS):
        start_s = time.perf_counter()
        trainer.step(x, y)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start_s)
    cores = (time.process_time() - busy_s) / (time.perf_counter() - begin_s)
    schedule, costs = trainer.schedule, trainer.costs
    timeline = trainer.timeline(x, y)
    calibrated = calibrate(schedule, costs, timeline)
    predicted = simulate(schedule, costs)
    return {
        "step_s": median(seconds),
        "steps_s": seconds,
        "predicted_s": predicted.step_s,
        "calibrated_s": simulate(schedule, calibrated).step_s,
        "timeline_s": timeline.step_s,
        "busy_cores": cores,
        "chunk_size": schedule.graph.chunk_size,
        "budget_bytes": schedule.budget_nbytes,
        "peak_bytes": trainer.peak_nbytes(),
        "slab_bytes": schedule.slab_nbytes,
        "file_bytes": schedule.file_nbytes,
        "offloaded_bytes": schedule.offloaded_nbytes,
        "copies": sum(step.lane in RATES for step in schedule.steps),
        "rates_in_step": rates(schedule, timeline),
        "rates_predicted": rates(schedule, predicted),
        "file_link": rates_of_link(trainer) if schedule.file_nbytes else None,
    }


def rates(schedule: Schedule, timeline: Timeline) -> Mapping[str, float]:
    """Bytes per second of writes and of reads while they run."""
    found = {}
    for lane, name in RATES.items():
        spans = [span for span in timeline.spans if span.lane is lane]
        taken_s = sum(span.end_s - span.start_s for span in spans)
        moved = sum(schedule.steps[span.step].copied_nbytes for span in spans)
        if spans:
            found[name] = moved / taken_s
    return found


def rates_of_link(trainer: Trainer) -> Mapping[str, float]:
    link = trainer.costs.links[FILE]
    names = ("out", "back", "out_duplex", "back_duplex", "latency_s")
    return {name: getattr(link, name) for name in names}


if __name__ == "__main__":
    main()

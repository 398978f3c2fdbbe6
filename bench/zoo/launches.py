"""The launches of a zoo network's training step beside their rooflines: where time is lost.

    python -m bench.zoo.launches --nets rexnet_100 efficientnet_b0 -o rows.json

`Trainer` under auto without a budget, one network after the other in one process. A row is one kind
of op, role and shape: how often it is launched, its seconds in a measured step, its seconds alone
(profiled, with a cold cache) and its roofline's by the data sheet of the GPU. The twelve rows of a
network that lose most seconds to the roofline are printed.
"""

import gc
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import tvdnn
from bench.command_line import parser_of
from bench.environment import environment
from bench.zoo.by_torch import MOMENTUM, RATE
from bench.zoo.job import DEVICE, built, data
from bench.zoo.launch_rows import lines, rows_of, sheet_of
from bench.zoo.networks import NAMES, ZooNetwork, network_named
from tvdnn.planner.ir.costs import Roofline
from tvdnn.planner.ir.hardware import load


def measured(network: ZooNetwork, dtype: str) -> dict[str, Any]:
    """The step of a network and its rows, on the GPU."""
    x, y = data(network, DEVICE)
    optimizer = tvdnn.optim.SGD(lr=RATE, momentum=MOMENTUM)
    trainer = tvdnn.Trainer(
        built(network, DEVICE), x, optimizer=optimizer, dtype=dtype, policy="auto",
        loss_weights=network.loss_weights,
    )  # fmt: skip
    trainer.step(x, y)
    trainer.settle()
    step_s, timeline = trainer.measure(x, y), trainer.timeline(x, y)
    sheet = sheet_of(torch.cuda.get_device_name())
    rows = rows_of(trainer.schedule, timeline, trainer.costs, Roofline(load(sheet), dtype))
    found = {
        "net": network.net,
        "batch": network.batch,
        "dtype": dtype,
        "step_s": step_s,
        "first_step": dict(trainer.first_step),
        "measured_peak_bytes": trainer.peak_nbytes(),
        "rows": [asdict(row) for row in rows],
    }
    trainer.close()
    print("\n".join(lines(found["net"], step_s, rows)), file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--nets", nargs="+", required=True, choices=NAMES)
    parser.add_argument("--dtype", choices=("bf16", "tf32"), default="bf16")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    found = []
    for name in options.nets:
        found.append(measured(network_named(name), options.dtype))
        document = {"environment": environment(), "networks": found}
        options.output.write_text(json.dumps(document, indent=1) + "\n")
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

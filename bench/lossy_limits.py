"""Which lossy codecs keep the gradients of the frontier's networks within limits of error.

    python -m bench.lossy_limits -o bench/results/plans/lossy_limits.json
    python -m bench.lossy_limits --batch 2 --width 0.25 --side 64 --dtypes fp32 -o rows.json
    python -m bench.lossy_limits --nets unet --search -o rows.json

A row is one network, type and codec, on random images at random weights: the largest relative root
of the mean square error of any parameter's gradient, whose it is, and whether it is within each
limit, where every map is rounded that may be on the graph that auto plans over. Exact gradients are
those of the same plan, in which maps go by the host's memory instead of a code. With `--search`
further steps find how many maps may stay rounded where all are over a limit. On a GPU networks have
the frontier's sizes. Rows are written as they are measured.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from bench.command_line import parser_of
from bench.environment import software
from bench.frontier import NETS
from tvdnn import models
from tvdnn.engine import Trainer
from tvdnn.graph import FP16
from tvdnn.optim import SGD
from tvdnn.planner.policies.gist import LOSSY, LOSSY_FORMS
from tvdnn.units import MIB

LIMITS: Final = (0.001, 0.01, 0.03)
DTYPES: Final = ("bf16", "tf32")
Row = dict[str, Any]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=NETS)
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=("bf16", "tf32", "fp32"))
    parser.add_argument("--limits", nargs="+", type=float, default=LIMITS)
    parser.add_argument("--batch", type=int, help="samples; the frontier's if not given")
    parser.add_argument("--side", type=int, help="pixels; the frontier's if not given")
    parser.add_argument("--width", type=float, default=1.0, help="share of the channels")
    parser.add_argument("--search", action="store_true", help="find the maps that may stay rounded")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    place = torch.cuda.get_device_name() if cuda else "a CPU"
    rows: list[Row] = []
    for net in options.nets:
        for dtype in options.dtypes:
            sizes = options.batch, options.side, options.width
            for row in rows_of(net, dtype, *sizes, limits=options.limits, search=options.search):
                print(json.dumps(row), file=sys.stderr, flush=True)
                rows.append(row)
                document = {"title": "Lossy codecs within limits", "rows": rows}
                document["environment"] = {**software(), "on": place}
                options.output.write_text(json.dumps(document, indent=1) + "\n")


def rows_of(
    name: str,
    dtype: str,
    batch: int | None,
    side: int | None,
    width: float,
    *,
    limits: list[float],
    search: bool,
) -> Iterator[Row]:
    """The rows of a network in one type: one for each codec that makes its maps smaller."""
    frontier_batch, frontier_side, chunk = NETS[name]
    channels, *sides = models.image_shape(name)
    side = side or frontier_side or sides[0]
    for form in LOSSY_FORMS:
        if form == FP16 and dtype == "bf16":
            continue
        torch.manual_seed(0)
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            net = models.by_name(name, width=width)
            x = torch.randn(batch or frontier_batch, channels, side, side)
            y = _labels(net, x)
        plan = {"policy": f"{LOSSY}:fused:{form}", "chunk_size": chunk * MIB}
        trainer = Trainer(net, x, optimizer=SGD(lr=1e-3, momentum=0.9), dtype=dtype, **plan)
        row = {"net": name, "batch": len(x), "side": side, "width": width, "dtype": dtype}
        row |= {"codec": str(form), **_measured(trainer, x, y, limits, search=search)}
        trainer.close()
        yield row
        del trainer, net, x, y
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _measured(
    trainer: Trainer, x: torch.Tensor, y: torch.Tensor, limits: list[float], *, search: bool
) -> Row:
    rounded = trainer.plan.rounded
    found = trainer.rounding_errors(x, y)
    error, parameter = found.worst
    maps = [each for each in trainer.graph.buffers.values() if each.name in rounded]
    row: Row = {"rounded_maps": len(rounded), "rounded_bytes": sum(each.nbytes for each in maps)}
    row |= {"parameters": len(found.errors), "largest_error": error, "of": parameter}
    row["passes"] = {str(limit): error <= limit for limit in limits}
    if search:
        dropped = {limit: trainer.rounding_errors(x, y, limit).dropped for limit in limits}
        row["maps_within"] = {str(each): len(rounded) - len(dropped[each]) for each in limits}
    return row


def _labels(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A class for each sample, or for each pixel where the network returns maps."""
    with torch.no_grad():
        _, classes, *sides = net.eval()(x[:1]).shape
    net.train()
    return torch.randint(classes, (len(x), *sides))


if __name__ == "__main__":
    main()

"""Weight gradients over ranges of splits: fewer running sums, more launches, the same bits.

    python -m bench.grad_weight_ranges [--dtypes bf16 tf32] -o F

Three layers each of ResNet-50 and VGG-16, with 256 samples. All variants of a layer run in turns in
one process, each time with a cold L2 cache; times are medians. Writes the rows as JSON.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from bench.cases.conv.layers import NETWORKS, SAMPLES, Layer, Tensors
from bench.cases.operands import Operands
from bench.command_line import parser_of
from bench.environment import environment
from bench.timing import DTYPES, in_turns
from tvdnn.kernels.conv.grad_weight.launch import (
    GradWeightPlan,
    conv2d_grad_weight,
    grad_weight_plan,
)
from tvdnn.kernels.reduce.partials import sum_partials
from tvdnn.units import MIB

LAYERS: Final = {
    "resnet50": ("64->64 3x3 @56", "256->256 3x3 @14", "2048->512 1x1 @7"),
    "vgg16": ("64->64 3x3 @224", "256->256 3x3 @56", "512->512 3x3 @14"),
}
PARTS: Final = (1, 2, 4, 8)  # of all running sums, a variant has one part
ROUNDS: Final = 30


@dataclass(frozen=True, slots=True)
class Row:
    """A layer's weight gradient with so many running sums at a time."""

    network: str
    layer: str
    dtype: str
    splits: int
    sums: int  # running sums at a time
    ranges: int  # launches of the gradient over the batch, each with a sum of its splits behind it
    sums_mib: float
    ms: float
    ratio: float  # of the milliseconds to those with all running sums
    same_bits: bool


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["bf16", "tf32"])
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    torch.set_default_device("cuda")
    rows: list[Row] = []
    for network, names in LAYERS.items():
        for layer in (each for each in NETWORKS[network] if each.name in names):
            for dtype in options.dtypes:
                rows += measure(network, layer, dtype)
                torch.cuda.empty_cache()
    document = {"environment": environment(), "rows": [asdict(row) for row in rows]}
    options.output.write_text(json.dumps(document, indent=1) + "\n")


def measure(network: str, layer: Layer, dtype: str) -> Iterator[Row]:
    """Time all variants of a layer's gradient, and compare their bits."""
    tensors = Tensors(Operands(torch.device("cuda")), SAMPLES, layer, DTYPES[dtype], "tf32")
    plan = plan_of(tensors)
    runs = {sums: variant(tensors, plan, sums) for sums in sums_of(plan)}
    grads = {sums: run().clone() for sums, run in runs.items()}
    seconds = in_turns({str(sums): run for sums, run in runs.items()}, ROUNDS)
    all_s, whole = seconds[str(plan.splits)], grads[plan.splits]
    nbytes = 4 * tensors.weight.numel()
    for sums, grad in grads.items():
        own_s, ranges = seconds[str(sums)], len(list(plan.ranges(sums)))
        row = Row(
            network, layer.name, dtype, plan.splits, sums, ranges, sums * nbytes / MIB,
            1e3 * own_s, own_s / all_s, torch.equal(grad, whole),
        )  # fmt: skip
        print(row, flush=True)
        yield row


def plan_of(t: Tensors) -> GradWeightPlan:
    return grad_weight_plan(*t.layer.sides, t.layer.shape, **t.settings, dtype=t.x.dtype)


def sums_of(plan: GradWeightPlan) -> Sequence[int]:
    """The numbers of running sums of the variants: all, parts of them, and the least."""
    parts = {max(plan.step, plan.splits // part // plan.step * plan.step) for part in PARTS[1:]}
    return sorted({plan.splits, *parts, plan.step}, reverse=True)


def variant(t: Tensors, plan: GradWeightPlan, sums: int) -> Callable[[], Tensor]:
    """Computes the weight's gradient with `sums` running sums at a time."""
    k, c, taps, _ = t.layer.shape
    partials = torch.empty(sums, k, taps, taps, c, device=t.x.device)
    grad = torch.empty(t.weight.shape, device=t.x.device)

    def run() -> Tensor:
        for splits in plan.ranges(sums):
            own, first = partials[: len(splits)], splits.start == 0
            conv2d_grad_weight(
                t.rounded_x, t.rounded_dy, own, first=True, splits=splits, **t.settings
            )
            sum_partials(own, grad, first=first)
        return grad

    return run


if __name__ == "__main__":
    main()

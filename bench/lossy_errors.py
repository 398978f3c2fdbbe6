"""Errors of gradients under gist-lossy, beside exact gradients, on the CPU executor.

    python -m bench.lossy_errors -o bench/results/plans/lossy_errors.json
    python -m bench.lossy_errors --nets lenet5 resnet50 --width 0.25

A row is one network, type and codec: the largest relative root of the mean square error of any
parameter's gradient, and whose it is, in one step at random weights on random images. The exact
gradients are those of `keep`. Networks have an eighth of their channels. None has a bias ahead of
batch normalization, whose exact gradient is zero but for rounding, and whose relative error tells
nothing. A gradient that is zero throughout has no part.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from bench.command_line import parser_of
from bench.environment import software
from bench.gist_memory import PAPERS
from tvdnn import models
from tvdnn.engine import virtualize
from tvdnn.graph import FP16
from tvdnn.planner.policies.gist import LOSSY, LOSSY_FORMS

NETS: Final = ("lenet5", *PAPERS, "resnet50")
BATCH: Final = 4
WIDTH: Final = 1 / 8
DTYPES: Final = ("fp32", "bf16")
Gradients = Mapping[str, Tensor]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--nets", nargs="+", default=NETS)
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--width", type=float, default=WIDTH)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for net in options.nets:
        for dtype in options.dtypes:
            for row in rows_of(net, dtype, options.batch, options.width):
                print(json.dumps(row), file=sys.stderr, flush=True)
                rows.append(row)
    document = {"title": "Errors of gradients", "rows": rows, "environment": software()}
    text = json.dumps(document, indent=1) + "\n"
    options.output.write_text(text) if options.output else print(text)


def rows_of(net: str, dtype: str, batch: int, width: float) -> Iterator[dict[str, Any]]:
    """The rows of a network in one type: one for each codec that makes its maps smaller."""
    torch.manual_seed(0)
    made = models.by_name(net, width=width)
    x = torch.randn(batch, *models.image_shape(net))
    y = torch.arange(batch)
    loss, exact, _ = step(made, x, y, "keep", dtype)
    for form in LOSSY_FORMS:
        if form == FP16 and dtype == "bf16":
            continue
        policy = f"{LOSSY}:{form}"
        found, rounded, maps = step(made, x, y, policy, dtype)
        errors = relative_errors(rounded, exact)
        worst = max(errors, key=errors.__getitem__)
        row = {"net": net, "batch": batch, "width": width, "dtype": dtype, "policy": policy}
        row |= {"rounded_maps": maps, "parameters": len(errors), "loss_is_exact": found == loss}
        yield row | {"largest_error": errors[worst], "of": worst}


def step(
    net: nn.Module, x: Tensor, y: Tensor, policy: str, dtype: str
) -> tuple[float, Gradients, int]:
    """The loss of one step, its gradients, and how many maps were rounded.

    Dropout draws the same numbers each time.
    """
    torch.manual_seed(1)
    virtual = virtualize(net, x, policy=policy, dtype=dtype)
    net.zero_grad()
    loss = nn.functional.cross_entropy(virtual(x).float(), y)
    loss.backward()
    named = net.named_parameters()
    gradients = {name: each.grad.clone() for name, each in named if each.grad is not None}
    return loss.item(), gradients, len(virtual.plan.rounded)


def relative_errors(found: Gradients, exact: Gradients) -> dict[str, float]:
    """By parameter, its gradient's error as a share of the gradient, unless this is zero."""
    sizes = {name: _rms(each) for name, each in exact.items()}
    return {name: _rms(found[name] - exact[name]) / sizes[name] for name in exact if sizes[name]}


def _rms(tensor: Tensor) -> float:
    return tensor.double().square().mean().sqrt().item()


if __name__ == "__main__":
    main()

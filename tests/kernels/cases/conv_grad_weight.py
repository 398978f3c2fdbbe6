"""Launches of conv_grad_weight.py and reduce.py to compile."""

from typing import Any

import torch

from tests.kernels.cases.conv import BFLOAT16, FLOAT32, UNIT, case, empty
from tests.offline import Case
from tvdnn.kernels.conv_grad_weight import conv2d_grad_bias, conv2d_grad_weight
from tvdnn.kernels.reduce import sum_partials


def _grad_weight(
    side: int, c: int, k: int, dtype: torch.dtype, group: int = 8, **settings: Any
) -> None:
    settings = UNIT | settings
    out = -(-side // settings["stride"][0])
    x = empty(64, side, side, c, dtype=dtype)
    dy = empty(64, out, out, k, dtype=dtype)
    partials = empty(64 // group, 2, k, 3, 3, c // settings["groups"])
    conv2d_grad_weight(x, dy, partials, group=group, splits=2, **settings)


def _reduce() -> None:
    sum_partials(empty(4, 2, 64, 3, 3, 64), empty(64, 64, 3, 3), first=True)
    conv2d_grad_bias(empty(8, 14, 14, 64, dtype=torch.bfloat16), empty(4, 64), group=2)


CASES = [
    Case("reduce", _reduce),
    case("weight gradient, first layer", _grad_weight, 56, 3, 64, BFLOAT16),
    case("weight gradient, first layer", _grad_weight, 56, 3, 64, FLOAT32),
    case("weight gradient, flat, 64 channels", _grad_weight, 56, 64, 64, BFLOAT16),
    case("weight gradient, flat", _grad_weight, 56, 128, 256, BFLOAT16),
    case("weight gradient, samples", _grad_weight, 14, 128, 256, BFLOAT16, group=64),
    case("weight gradient, few samples", _grad_weight, 14, 128, 256, BFLOAT16, group=16),
    case("weight gradient, stride 2", _grad_weight, 56, 64, 128, BFLOAT16, stride=(2, 2)),
    case("weight gradient, flat", _grad_weight, 56, 128, 256, FLOAT32, wgmma=False),
    case("weight gradient, exact", _grad_weight, 56, 128, 256, FLOAT32, precision="ieee"),
]

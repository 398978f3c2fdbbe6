"""Launches of conv_grad_weight.py and reduce.py to compile."""

import math
from typing import Any

import torch

from tests.kernels.cases.conv import BFLOAT16, FLOAT32, UNIT, case, empty
from tests.support.offline import Case
from tvdnn.kernels.conv.grad_weight.launch import conv2d_grad_weight, grad_weight_plan
from tvdnn.kernels.reduce.partials import sum_partials, sum_rows


def _grad_weight(side: int, c: int, k: int, dtype: torch.dtype, **settings: Any) -> None:
    settings = UNIT | settings
    out = -(-side // settings["stride"][0])
    x = empty(64, side, side, c, dtype=dtype)
    dy = empty(64, out, out, k, dtype=dtype)
    shape = (k, c // settings["groups"], 3, 3)
    plan = grad_weight_plan((side, side), (out, out), shape, **settings, dtype=dtype)
    partials = empty(plan.splits, k, 3, 3, shape[1])
    for first in (True, False):
        conv2d_grad_weight(x, dy, partials, first=first, **settings)


def _reduce() -> None:
    for shape, first in (((512, 512, 3, 3), False), ((1000,), True)):
        sum_partials(empty(8, math.prod(shape)), empty(*shape), first=first)
    sum_rows(empty(4096, 64), empty(16, 64), group=256)


CASES = [
    Case("reduce", _reduce),
    case("weight gradient, first layer", _grad_weight, 56, 3, 64, BFLOAT16),
    case("weight gradient, first layer", _grad_weight, 56, 3, 64, FLOAT32),
    case("weight gradient, flat, 64 channels", _grad_weight, 56, 64, 64, BFLOAT16),
    case("weight gradient, taps", _grad_weight, 56, 64, 128, BFLOAT16),
    case("weight gradient, flat, 128 channels", _grad_weight, 56, 128, 128, BFLOAT16),
    case("weight gradient, flat, 256 channels", _grad_weight, 56, 128, 256, BFLOAT16),
    case("weight gradient, flat, wide", _grad_weight, 56, 256, 256, BFLOAT16),
    case("weight gradient, samples", _grad_weight, 14, 128, 256, BFLOAT16),
    case("weight gradient, samples, wide", _grad_weight, 14, 512, 512, BFLOAT16),
    case("weight gradient, samples, stride 2", _grad_weight, 28, 64, 128, BFLOAT16, stride=(2, 2)),
    case("weight gradient, stride 2", _grad_weight, 112, 64, 128, BFLOAT16, stride=(2, 2)),
    case("weight gradient, turned", _grad_weight, 56, 128, 256, FLOAT32),
    case("weight gradient, turned, 64 channels", _grad_weight, 224, 64, 64, FLOAT32),
    case(
        "weight gradient, flat",
        _grad_weight,
        56,
        128,
        256,
        FLOAT32,
        padding=(2, 2),
        dilation=(2, 2),
        wgmma=False,
    ),
    case(
        "weight gradient, samples", _grad_weight, 28, 128, 256, FLOAT32, stride=(2, 2), wgmma=False
    ),
    case("weight gradient, exact", _grad_weight, 56, 128, 256, FLOAT32, precision="ieee"),
]

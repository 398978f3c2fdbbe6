"""Launches of conv.py, conv_pack.py and reduce.py to compile."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.offline import Case
from tvdnn.kernels.conv import (
    conv2d,
    conv2d_grad_bias,
    conv2d_grad_input,
    conv2d_grad_weight,
)
from tvdnn.kernels.conv_pack import pack_weight, pack_weight_grad_input
from tvdnn.kernels.reduce import sum_partials

UNIT = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1, "precision": "tf32"}


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _forward(side: int, c: int, k: int, dtype: torch.dtype, **settings: Any) -> None:
    settings = UNIT | settings
    out = -(-side // settings["stride"][0])
    x = _empty(64, side, side, c, dtype=dtype)
    y = _empty(64, out, out, k, dtype=dtype)
    packed = _empty(k, 3, 3, c // settings["groups"], dtype=dtype)
    conv2d(x, packed, _empty(k), y, **settings)


def _grad_input(side: int, c: int, k: int, dtype: torch.dtype, **settings: Any) -> None:
    settings = UNIT | settings
    out = -(-side // settings["stride"][0])
    dx = _empty(64, side, side, c, dtype=dtype)
    dy = _empty(64, out, out, k, dtype=dtype)
    packed = _empty(c, 3, 3, k // settings["groups"], dtype=dtype)
    conv2d_grad_input(dy, packed, dx, **settings)


def _grad_weight(
    side: int, c: int, k: int, dtype: torch.dtype, group: int = 8, **settings: Any
) -> None:
    settings = UNIT | settings
    out = -(-side // settings["stride"][0])
    x = _empty(64, side, side, c, dtype=dtype)
    dy = _empty(64, out, out, k, dtype=dtype)
    partials = _empty(64 // group, 2, k, 3, 3, c // settings["groups"])
    conv2d_grad_weight(x, dy, partials, group=group, splits=2, **settings)


def _pack() -> None:
    weight = _empty(64, 64, 3, 3)
    packed = _empty(64, 3, 3, 64, dtype=torch.bfloat16)
    pack_weight(weight, packed, groups=1)
    pack_weight_grad_input(weight, packed, groups=1)


def _reduce() -> None:
    sum_partials(_empty(4, 2, 64, 3, 3, 64), _empty(64, 64, 3, 3), first=True)
    conv2d_grad_bias(_empty(8, 14, 14, 64, dtype=torch.bfloat16), _empty(4, 64), group=2)


def _case(name: str, launch: Callable[..., None], *arguments: Any, **settings: Any) -> Case:
    dtype = arguments[-1]
    name = f"{name} {str(dtype).removeprefix('torch.')}"
    products = settings.get("precision") != "ieee" and settings.pop("wgmma", True)
    return Case(name, partial(launch, *arguments, **settings), wgmma=products)


BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32
CASES = [
    Case("pack", _pack),
    Case("reduce", _reduce),
    _case("forward, first layer", _forward, 56, 3, 64, BFLOAT16),
    _case("forward, first layer", _forward, 56, 3, 64, FLOAT32),
    _case("forward, box, 64 channels", _forward, 56, 64, 64, BFLOAT16),
    _case("forward, box", _forward, 14, 128, 256, BFLOAT16),
    _case("forward, box, 64 channels", _forward, 56, 64, 64, FLOAT32),
    _case("forward, box", _forward, 14, 128, 256, FLOAT32),
    _case("forward, box, odd channels", _forward, 14, 96, 40, BFLOAT16),
    _case("forward, stride 2", _forward, 14, 64, 128, BFLOAT16, stride=(2, 2)),
    _case("forward, stride 2", _forward, 14, 64, 128, FLOAT32, stride=(2, 2)),
    _case("forward, exact", _forward, 14, 64, 128, FLOAT32, precision="ieee"),
    _case("forward, first layer, exact", _forward, 56, 3, 64, FLOAT32, precision="ieee"),
    _case("forward, depthwise", _forward, 14, 64, 64, BFLOAT16, groups=64, wgmma=False),
    _case("data gradient, box", _grad_input, 14, 128, 256, BFLOAT16),
    _case("data gradient, first layer", _grad_input, 14, 3, 64, BFLOAT16),
    _case("data gradient, stride 2", _grad_input, 14, 64, 128, BFLOAT16, stride=(2, 2)),
    _case("data gradient, stride 2", _grad_input, 14, 64, 128, FLOAT32, stride=(2, 2)),
    _case("weight gradient, first layer", _grad_weight, 56, 3, 64, BFLOAT16),
    _case("weight gradient, first layer", _grad_weight, 56, 3, 64, FLOAT32),
    _case("weight gradient, flat, 64 channels", _grad_weight, 56, 64, 64, BFLOAT16),
    _case("weight gradient, flat", _grad_weight, 56, 128, 256, BFLOAT16),
    _case("weight gradient, samples", _grad_weight, 14, 128, 256, BFLOAT16, group=64),
    _case("weight gradient, few samples", _grad_weight, 14, 128, 256, BFLOAT16, group=16),
    _case("weight gradient, stride 2", _grad_weight, 56, 64, 128, BFLOAT16, stride=(2, 2)),
    _case("weight gradient, flat", _grad_weight, 56, 128, 256, FLOAT32, wgmma=False),
    _case("weight gradient, exact", _grad_weight, 56, 128, 256, FLOAT32, precision="ieee"),
]

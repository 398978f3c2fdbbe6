"""Launches of conv.py and conv_pack.py to compile."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.support.offline import Case
from tvdnn.kernels.conv.batch_stats import MomentCells, cell_moments, merge_cells, moment_cells
from tvdnn.kernels.conv.conv2d import conv2d, conv2d_grad_input, conv2d_max_pool
from tvdnn.kernels.conv.pack_weight import pack_weight, pack_weight_grad_input
from tvdnn.kernels.language.gluon import widens

UNIT = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1, "precision": "tf32"}


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _forward(side: int, c: int, k: int, dtype: torch.dtype, **settings: Any) -> None:
    settings = UNIT | settings
    out = -(-side // settings["stride"][0])
    x = empty(64, side, side, c, dtype=dtype)
    y = empty(64, out, out, k, dtype=dtype)
    packed = empty(k, 3, 3, c // settings["groups"], dtype=dtype)
    conv2d(x, packed, empty(k), y, relu=True, **settings)


def _moments(
    side: int, c: int, k: int, dtype: torch.dtype, *, size: int = 3, stride: int = 1
) -> None:
    """With the moments of what is stored, in the kernel's own cells, and their merge."""
    geometry: dict[str, Any] = {"stride": (stride, stride), "padding": (size // 2, size // 2)}
    out = -(-side // stride)
    settings = UNIT | geometry
    sides = (side, side), (out, out)
    cells = moment_cells(*sides, (k, c, size, size), **settings, dtype=dtype)
    assert cells is not None
    x, y = empty(64, side, side, c, dtype=dtype), empty(64, out, out, k, dtype=dtype)
    packed, moments = empty(k, size, size, c, dtype=dtype), empty(*cells.shape(64, k))
    left = {"out_precision": "ieee", "moments": moments, "cells": cells}
    conv2d(x, packed, None, y, **settings, **left)


def _merge_cells(side: int, c: int) -> None:
    cells = MomentCells((side, side), (1, 1, 128), flat=True)
    moments, maps = empty(*cells.shape(64, c)), empty(64, side, side, c, dtype=BFLOAT16)
    cell_moments(maps, moments, cells=cells)
    merge_cells(moments, empty(len(moments), 1, 2, c), samples=64, cells=cells)


def _max_pool(side: int, c: int, k: int, dtype: torch.dtype, **settings: Any) -> None:
    settings = UNIT | settings
    out = -(-side // settings["stride"][0])
    x = empty(64, side, side, c, dtype=dtype)
    y = empty(64, out // 2, out // 2, k, dtype=dtype)
    codes = empty(64, out // 2, out // 2, k // 4, dtype=torch.uint8)
    packed = empty(k, 3, 3, c // settings["groups"], dtype=dtype)
    conv2d_max_pool(x, packed, empty(k), y, codes, **settings)


def _grad_input(
    side: int, c: int, k: int, dtype: torch.dtype, *, cell: int = 0, **settings: Any
) -> None:
    settings = UNIT | settings
    out = -(-side // settings["stride"][0])
    dx = empty(64, side, side, c, dtype=dtype)
    dy = empty(64, out, out, k, dtype=dtype)
    packed = empty(c, 3, 3, k // settings["groups"], dtype=dtype)
    sums = empty(64, side // cell, side // cell, c) if cell else None
    conv2d_grad_input(dy, packed, dx, mask=torch.empty_like(dx), sums=sums, **settings)


def _transposed(side: int, c: int, k: int, dtype: torch.dtype, **settings: Any) -> None:
    """A decoder's, by windows of 2x2 side by side."""
    settings = UNIT | {"padding": (0, 0), "stride": (2, 2)} | settings
    x, y = empty(64, side, side, k, dtype=dtype), empty(64, 2 * side, 2 * side, c, dtype=dtype)
    conv2d_grad_input(x, empty(c, 2, 2, k, dtype=dtype), y, bias=empty(c), **settings)


def _pack() -> None:
    weight = empty(64, 64, 3, 3)
    packed = empty(64, 3, 3, 64, dtype=torch.bfloat16)
    pack_weight(weight, packed, groups=1)
    pack_weight_grad_input(weight, packed, groups=1)


def case(name: str, launch: Callable[..., None], *arguments: Any, **settings: Any) -> Case:
    dtype = arguments[-1]
    exact = settings.get("precision") == "ieee"
    name = f"{name} {str(dtype).removeprefix('torch.')}"
    products = not exact and settings.pop("wgmma", True)
    return Case(name, partial(launch, *arguments, **settings), wgmma=products)


EVERY_2 = {"stride": (2, 2), "dilation": (2, 2)}
BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32
CASES = [
    Case("pack", _pack),
    case("forward, box", _forward, 14, 128, 256, BFLOAT16),
    case("forward, first layer", _forward, 56, 3, 64, BFLOAT16),
    case("forward, first layer", _forward, 56, 3, 64, FLOAT32),
    case("forward, box, 64 channels", _forward, 56, 64, 64, BFLOAT16),
    case("forward, box, 64 channels", _forward, 56, 64, 64, FLOAT32),
    case("forward, box", _forward, 14, 128, 256, FLOAT32),
    case("forward, box, odd channels", _forward, 14, 96, 40, BFLOAT16),
    case("forward, stride 2", _forward, 14, 64, 128, BFLOAT16, stride=(2, 2)),
    case("forward, stride 2", _forward, 14, 64, 128, FLOAT32, stride=(2, 2)),
    case("forward, exact", _forward, 14, 64, 128, FLOAT32, precision="ieee"),
    case("forward, first layer, exact", _forward, 56, 3, 64, FLOAT32, precision="ieee"),
    case("forward, depthwise", _forward, 14, 64, 64, BFLOAT16, groups=64, wgmma=False),
    case("moments, first layer", _moments, 224, 3, 64, BFLOAT16, size=7, stride=2),
    case("moments, one by one", _moments, 56, 64, 256, BFLOAT16, size=1),
    case("moments, 64 channels", _moments, 56, 64, 64, BFLOAT16),
    case("moments, odd channels", _moments, 56, 96, 128, BFLOAT16, size=1),
    case("moments, shared rows", _moments, 112, 128, 128, FLOAT32),
    case("moments, one by one", _moments, 56, 64, 256, FLOAT32, size=1),
    Case("moments of cells", partial(_merge_cells, 56, 256)),
    case("pooled, box, 64 channels", _max_pool, 56, 64, 64, BFLOAT16),
    case("pooled, box", _max_pool, 14, 128, 256, BFLOAT16),
    case("pooled, wide box", _max_pool, 56, 128, 256, BFLOAT16),
    case("pooled, box", _max_pool, 14, 128, 256, FLOAT32),
    case("pooled, stride 2", _max_pool, 14, 64, 128, BFLOAT16, stride=(2, 2)),
    case("forward, shared rows", _forward, 112, 128, 256, BFLOAT16),
    case("forward, shared rows", _forward, 112, 128, 256, FLOAT32),
    case("data gradient, shared rows", _grad_input, 224, 64, 64, BFLOAT16),
    case("data gradient, shared rows", _grad_input, 224, 64, 64, FLOAT32),
    case("pooled, shared rows", _max_pool, 224, 64, 64, FLOAT32),
    case("data gradient, box", _grad_input, 14, 128, 256, BFLOAT16),
    case("data gradient, cells of 8", _grad_input, 224, 64, 64, BFLOAT16, cell=8),
    case("data gradient, cells of 4", _grad_input, 28, 512, 512, BFLOAT16, cell=4),
    case("data gradient, cells of 2", _grad_input, 14, 512, 512, BFLOAT16, cell=2),
    case(
        "data gradient, cells of 8",
        _grad_input,
        112,
        64,
        64,
        FLOAT32,
        cell=8,
        wgmma=widens(),  # else a kernel of their own sums the cells
    ),
    case("data gradient, first layer", _grad_input, 14, 3, 64, BFLOAT16),
    case("data gradient, stride 2", _grad_input, 14, 64, 128, BFLOAT16, stride=(2, 2)),
    case("data gradient, stride 2", _grad_input, 14, 64, 128, FLOAT32, stride=(2, 2)),
    case("transposed, stride 2", _transposed, 64, 256, 512, BFLOAT16),
    case("transposed, stride 2", _transposed, 64, 256, 512, FLOAT32),
    case("forward, stride 2, odd channels", _forward, 14, 24, 128, BFLOAT16, stride=(2, 2)),
    case("data gradient, every 2", _grad_input, 14, 64, 128, BFLOAT16, **EVERY_2),
    case("data gradient, every 2", _grad_input, 14, 64, 128, FLOAT32, **EVERY_2),
]

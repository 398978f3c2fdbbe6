"""Depthwise convolutions, and their gradients."""

from typing import Any

import torch

from bench.cases.case import At, KernelCase
from bench.cases.launch import Launch, Settings, launching
from bench.cases.operands import BF16, F32, Operands, Shape
from tvdnn.kernels.conv.depthwise import (
    depthwise_conv2d,
    depthwise_conv2d_grad_input,
    depthwise_conv2d_grad_weight,
    depthwise_plan,
)


def _layer(
    o: Operands, size: Shape, taps: int, stride: int, dtype: torch.dtype
) -> tuple[Shape, torch.Tensor, dict[str, Any]]:
    """The shape of the outputs, the weight, and the geometry."""
    samples, height, width, channels = size
    out = (samples, -(-height // stride), -(-width // stride), channels)
    around = (taps // 2, taps // 2)
    geometry = {"stride": (stride, stride), "padding": around, "dilation": (1, 1)}
    return out, o.randn(taps, taps, channels, dtype=dtype), geometry


def _precision(dtype: torch.dtype) -> dict[str, str]:
    return {"precision": "tf32" if dtype == F32 else "ieee"}


def _forward(
    o: Operands, size: Shape, taps: int = 3, stride: int = 1, dtype: torch.dtype = BF16
) -> Launch:
    out, packed, geometry = _layer(o, size, taps, stride, dtype)
    operands = (o.randn(*size, dtype=dtype), packed, o.randn(size[3]), o.out(*out, dtype=dtype))
    return launching(depthwise_conv2d, *operands, **geometry, **_precision(dtype))


def _grad_input(
    o: Operands, size: Shape, taps: int = 3, stride: int = 1, dtype: torch.dtype = BF16
) -> Launch:
    out, packed, geometry = _layer(o, size, taps, stride, dtype)
    operands = (o.randn(*out, dtype=dtype), packed, o.out(*size, dtype=dtype))
    return launching(depthwise_conv2d_grad_input, *operands, **geometry, **_precision(dtype))


def _grad_weight(
    o: Operands,
    size: Shape,
    taps: int = 3,
    stride: int = 1,
    dtype: torch.dtype = BF16,
    first: bool = True,
) -> Launch:
    out, _, geometry = _layer(o, size, taps, stride, dtype)
    plan = depthwise_plan(out[1:3], size[3], (taps, taps))
    sums = o.out(plan.splits, size[3], taps, taps, 1, compared=lambda sums: sums.sum(0))
    operands = (o.randn(*size, dtype=dtype), o.randn(*out, dtype=dtype), sums)
    return launching(depthwise_conv2d_grad_weight, *operands, first=first, **geometry)


TF32 = 1e-4  # a value that is stored may round the other way
# Architectures other than Hopper compile the first alone, which is the least.
COMPILED = (
    At((2, 112, 112, 96), {"stride": 2}),
    At((2, 56, 56, 96), {"taps": 7}),
    At((2, 7, 7, 768), {"taps": 7, "dtype": F32}),
    At((2, 14, 14, 24), {"taps": 5, "stride": 2, "dtype": F32}),
)
CHECKED: dict[str, Settings] = {
    "5x5": {"taps": 5},
    "3x3 by 2": {"stride": 2},
    "7x7, float32": {"taps": 7, "dtype": F32},
}
CASES = (
    KernelCase(depthwise_conv2d, _forward, CHECKED, COMPILED, odd=False, tolerance=TF32),
    KernelCase(
        depthwise_conv2d_grad_input, _grad_input, CHECKED, COMPILED, odd=False, tolerance=TF32
    ),
    KernelCase(
        depthwise_conv2d_grad_weight, _grad_weight, CHECKED, COMPILED, odd=False, tolerance=TF32
    ),
)

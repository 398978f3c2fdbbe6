"""Launches of conv_depthwise.py to compile."""

from functools import partial

import torch

from tests.support.offline import Case
from tvdnn.kernels.conv.depthwise import (
    depthwise_conv2d,
    depthwise_conv2d_grad_input,
    depthwise_conv2d_grad_weight,
    depthwise_plan,
)


def _layer(side: int, channels: int, size: int, stride: int, dtype: torch.dtype) -> None:
    out, pair = -(-side // stride), (stride, stride)
    x = torch.empty(2, side, side, channels, dtype=dtype, device="meta")
    y = torch.empty(2, out, out, channels, dtype=dtype, device="meta")
    packed = torch.empty(size, size, channels, dtype=dtype, device="meta")
    plan = depthwise_plan((out, out), channels, (size, size))
    sums = torch.empty(plan.splits, channels, size, size, 1, device="meta")
    geometry = {"stride": pair, "padding": (size // 2, size // 2), "dilation": (1, 1)}
    precision = "tf32" if dtype == torch.float32 else "ieee"
    bias = torch.empty(channels, device="meta")
    depthwise_conv2d(x, packed, bias, y, **geometry, precision=precision)
    depthwise_conv2d_grad_input(y, packed, x, **geometry, precision=precision)
    depthwise_conv2d_grad_weight(x, y, sums, first=True, **geometry)


LAYERS = (  # the least first: other architectures than Hopper compile that alone
    (112, 96, 3, 2, torch.bfloat16),
    (56, 96, 7, 1, torch.bfloat16),
    (7, 768, 7, 1, torch.float32),
    (14, 24, 5, 2, torch.float32),
)
CASES = [
    Case(
        f"{size}x{size} of {channels} channels by {stride}, {dtype}",
        partial(_layer, side, channels, size, stride, dtype),
    )
    for side, channels, size, stride, dtype in LAYERS
]

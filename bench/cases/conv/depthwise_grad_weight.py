"""The gradient of a depthwise convolution's weight."""

import torch
from torch import Tensor

from bench.cases.case import KernelCase
from bench.cases.conv.depthwise_layers import (
    CHECKED,
    COMPILED,
    MADE,
    TF32,
    beside,
    layer_of,
    made_by_of,
    measured,
    peer_of,
)
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, Operands, Shape
from tvdnn.kernels.conv.depthwise_grad_weight import depthwise_conv2d_grad_weight, depthwise_plan


def _grad_weight(
    o: Operands,
    size: Shape,
    taps: int = 3,
    stride: int = 1,
    dtype: torch.dtype = BF16,
    starts: bool = True,
    first: bool | None = None,
    channels: int = 0,
    maker: str | None = None,
) -> Launch:
    size, out, packed, geometry = layer_of(o, size, channels, taps, stride, dtype)
    strides = geometry["stride"], geometry["dilation"]
    plan = depthwise_plan(out[1:3], size[3], (taps, taps), *strides)
    sums = o.out(plan.splits, size[3], taps, taps, 1, compared=lambda sums: sums.sum(0))
    x, dy = (o.randn(*maps, dtype=dtype, beside=beside(size)) for maps in (size, out))

    def gradient() -> Tensor:
        return sums.sum(0).permute(0, 3, 1, 2)

    peer = peer_of(o, x, dy, packed, 1, geometry, gradient, first)
    settings = {**geometry, "first": starts, **made_by_of(o, size[3], maker)}
    return launching(depthwise_conv2d_grad_weight, x, dy, sums, peer=peer, **settings)


CASES = (
    KernelCase(
        depthwise_conv2d_grad_weight,
        _grad_weight,
        CHECKED,
        COMPILED + MADE,
        [*measured("depthwise_conv2d_grad_weight")],
        odd=False,
        tolerance=TF32,
    ),
)

"""Depthwise convolutions, and the gradients of their inputs."""

import torch

from bench.cases.case import KernelCase
from bench.cases.conv.depthwise_layers import (
    CHECKED,
    COMPILED,
    MADE,
    TF32,
    WITH_MOMENTS,
    beside,
    layer_of,
    made_by_of,
    measured,
    peer_of,
)
from bench.cases.launch import Launch, launching, nchw
from bench.cases.operands import BF16, F32, Operands, Shape
from tvdnn.kernels.conv.depthwise import depthwise_conv2d, depthwise_conv2d_grad_input
from tvdnn.kernels.conv.depthwise_moments import cells_of


def _precision(dtype: torch.dtype) -> dict[str, str]:
    return {"precision": "tf32" if dtype == F32 else "ieee"}


def _forward(
    o: Operands, size: Shape, taps: int = 3, stride: int = 1, dtype: torch.dtype = BF16,
    first: bool | None = None, channels: int = 0, maker: str | None = None, moments: bool = False,
) -> Launch:  # fmt: skip
    """With a peer whose channels are `first` or last, without a bias, if that is given."""
    size, out, packed, geometry = layer_of(o, size, channels, taps, stride, dtype)
    x = o.randn(*size, dtype=dtype, beside=beside(size))
    y = o.out(*out, dtype=dtype, beside=beside(size))
    bias = o.randn(size[3]) if first is None else None
    peer = peer_of(o, x, y, packed, None, geometry, lambda: nchw(y), first)
    operands = (x, packed, bias, y)
    settings = {**geometry, **_precision(dtype), **made_by_of(o, size[3], maker)}
    if moments:
        cells = cells_of((out[1], out[2]))
        settings |= {"cells": cells, "moments": o.out(*cells.shape(out[0], out[3]))}
    return launching(depthwise_conv2d, *operands, peer=peer, **settings)


def _grad_input(
    o: Operands, size: Shape, taps: int = 3, stride: int = 1, dtype: torch.dtype = BF16,
    first: bool | None = None, channels: int = 0,
) -> Launch:  # fmt: skip
    size, out, packed, geometry = layer_of(o, size, channels, taps, stride, dtype)
    dy = o.randn(*out, dtype=dtype, beside=beside(size))
    dx = o.out(*size, dtype=dtype, beside=beside(size))
    peer = peer_of(o, dx, dy, packed, 0, geometry, lambda: nchw(dx), first)
    operands = (dy, packed, dx)
    settings = {**geometry, **_precision(dtype)}
    return launching(depthwise_conv2d_grad_input, *operands, peer=peer, **settings)


CASES = tuple(
    KernelCase(
        launcher,
        make,
        CHECKED,
        COMPILED + ((*MADE, *WITH_MOMENTS) if make is _forward else ()),
        [*measured(launcher.__name__)],
        odd=False,
        tolerance=TF32,
    )
    for launcher, make in (
        (depthwise_conv2d, _forward),
        (depthwise_conv2d_grad_input, _grad_input),
    )
)

"""Maps times a learned scale of each channel, added to a residual, and the gradients."""

from typing import Any

import torch

from bench.cases.case import BY_TYPE, At, KernelCase
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, F32, Operands, Shape
from tvdnn.kernels.language.channel_chunks import num_chunks
from tvdnn.kernels.pointwise.channel_scale import add_scaled, scale_channels, scale_channels_grad
from tvdnn.kernels.pointwise.dropout_blocks import Drop


def _scale(o: Operands, size: Shape, dtype: torch.dtype = BF16, **settings: Any) -> Launch:
    x, y = o.randn(*size, dtype=dtype).flatten(1, -2), o.out(*size, dtype=dtype).flatten(1, -2)
    return launching(scale_channels, x, o.randn(size[-1]), y, **settings)


def _drop(o: Operands, part: str) -> Drop | None:
    """Draws for parts of this name; none for ""."""
    return Drop(o.integers(9, 1), part, 0.5, 2, 256) if part else None


def _add(
    o: Operands, size: Shape, dtype: torch.dtype = BF16, part: str = "", **settings: Any
) -> Launch:
    x, residual = (o.randn(*size, dtype=dtype).flatten(1, -2) for _ in range(2))
    y = o.out(*size, dtype=dtype).flatten(1, -2)
    operands, drop = (x, o.randn(size[-1]), residual, y), _drop(o, part)
    return launching(add_scaled, *operands, drop=drop, **settings)


def _scale_grad(
    o: Operands, size: Shape, dtype: torch.dtype = BF16, part: str = "", **settings: Any
) -> Launch:
    x, dy = (o.randn(*size, dtype=dtype).flatten(1, -2) for _ in range(2))
    dx, (samples, pixels, channels) = o.out(*x.shape, dtype=dtype), x.shape
    shape = (samples, num_chunks(pixels, channels), 1, channels)
    sums = o.out(*shape, compared=lambda sums: sums.sum(1))
    operands, drop = (x, dy, o.randn(channels), dx, sums), _drop(o, part)
    return launching(scale_channels_grad, *operands, drop=drop, **settings)


COMPILED = (
    At((2, 3136, 1, 96), {"dtype": BF16, "precision": "ieee"}),
    At((2, 49, 1, 769), {"dtype": F32, "precision": "tf32"}),
)
DROPPED = (*COMPILED, At((2, 3136, 1, 96), {"dtype": BF16, "part": "row"}))
CHECKED = {**BY_TYPE, "rows fall": {"part": "row"}, "channels fall": {"part": "channel"}}
CASES = (
    KernelCase(scale_channels, _scale, BY_TYPE, COMPILED),
    KernelCase(add_scaled, _add, CHECKED, DROPPED),
    KernelCase(scale_channels_grad, _scale_grad, CHECKED, DROPPED),
)

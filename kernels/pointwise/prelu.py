"""PReLU (He et al. 2015): maps whose negative values are multiplied by learned slopes.

There is one slope for all channels, or one for each. A slope's gradient is a sum in a fixed order.
A program writes the sum over one chunk of a sample's pixels and one block of channels.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.channel_chunks import chunk_of, chunk_place, launch_chunks, num_chunks, tile_of
from ..language.rounding import stored, stored_reference


@triton.jit(do_not_specialize=["pixels", "chunks", "chunk"])
def _prelu_kernel(
    x_ptr, slope_ptr, y_ptr, pixels, channels, slope_stride, chunks, chunk,
    PRECISION: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    sample, start, stop, p, c = chunk_place(pixels, chunks, chunk, PIXELS, CHANNELS)
    slope = tl.load(slope_ptr + c * slope_stride, mask=c < channels, other=0.0)
    for first in range(start, stop, PIXELS):
        mask = (first + p < stop) & (c < channels)
        offs = (sample * pixels + first + p) * channels + c  # [PIXELS, CHANNELS]
        x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        y = tl.where(x > 0, x, slope * x)
        tl.store(y_ptr + offs, stored(y, y_ptr.dtype.element_ty, PRECISION), mask=mask)


@triton.jit(do_not_specialize=["pixels", "chunks", "chunk"])
def _prelu_grad_kernel(
    x_ptr, dy_ptr, slope_ptr, dx_ptr, sums_ptr, pixels, channels, slope_stride, chunks, chunk,
    PRECISION: tl.constexpr, BY_CHANNEL: tl.constexpr,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    sample, start, stop, p, c = chunk_place(pixels, chunks, chunk, PIXELS, CHANNELS)
    slope = tl.load(slope_ptr + c * slope_stride, mask=c < channels, other=0.0)
    total = tl.zeros((PIXELS, CHANNELS), tl.float32)
    for first in range(start, stop, PIXELS):
        mask = (first + p < stop) & (c < channels)
        offs = (sample * pixels + first + p) * channels + c
        x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        total = tl.fma(tl.where(x > 0, 0.0, x), dy, total)
        if dx_ptr is not None:
            dx = stored(tl.where(x > 0, dy, slope * dy), dx_ptr.dtype.element_ty, PRECISION)
            tl.store(dx_ptr + offs, dx, mask=mask)
    if sums_ptr is not None:
        by_channel = tl.sum(total, 0, keep_dims=True)
        place = tl.program_id(0).to(tl.int64)
        if BY_CHANNEL:
            tl.store(sums_ptr + place * channels + c, by_channel, mask=c < channels)
        else:
            place = place * tl.num_programs(1) + tl.program_id(1)
            tl.store(sums_ptr + place, tl.sum(tl.sum(by_channel, 1), 0))


def prelu(x: Tensor, slope: Tensor, y: Tensor, *, precision: str = "ieee") -> None:
    """y = x [N, P, C] where x > 0, else x * slope, float32 [C] or [1]. y may be x."""
    if x.numel():
        launch_chunks(_prelu_kernel, x, (x, slope, y), _stride(slope), PRECISION=precision)


def prelu_grad(
    x: Tensor, dy: Tensor, slope: Tensor, dx: Tensor | None, sums: Tensor | None, *,
    precision: str = "ieee",
) -> None:  # fmt: skip
    """The gradient dx of `prelu` and partial sums of the slopes' gradients. Either may be None.

    sums are float32 [N, `prelu_terms`(P, C, slopes), 1, slopes]. dx may be dy.
    """
    if x.numel():
        launch_chunks(
            _prelu_grad_kernel, x, (x, dy, slope, dx, sums), _stride(slope),
            PRECISION=precision, BY_CHANNEL=slope.numel() > 1 or x.shape[2] == 1,
        )  # fmt: skip


def prelu_terms(pixels: int, channels: int, slopes: int) -> int:
    """Number of partial sums of a sample [pixels, channels] for each slope's gradient."""
    blocks = 1 if slopes > 1 else triton.cdiv(channels, tile_of(pixels, channels)[1])
    return num_chunks(pixels, channels) * blocks


def _stride(slope: Tensor) -> int:
    """Elements from one channel's slope to the next one's."""
    return int(slope.numel() > 1)


def prelu_reference(x: Tensor, slope: Tensor, y: Tensor, *, precision: str = "ieee") -> None:
    """Computes `prelu` in torch."""
    wide = x.float()
    y.copy_(stored_reference(torch.where(wide > 0, wide, slope * wide), y.dtype, precision))


def prelu_grad_reference(
    x: Tensor, dy: Tensor, slope: Tensor, dx: Tensor | None, sums: Tensor | None, *,
    precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `prelu_grad` in torch."""
    if not x.numel():
        return
    if sums is not None:
        terms = torch.where(x > 0, 0.0, x.double() * dy.double())
        chunks = torch.stack([p.sum(1) for p in terms.split(chunk_of(*x.shape[1:]), 1)], 1)
        if slope.numel() == 1:
            blocks = chunks.split(tile_of(*x.shape[1:])[1], 2)
            chunks = torch.stack([block.sum(2) for block in blocks], 2)
        sums.copy_(chunks.reshape(sums.shape))
    if dx is not None:
        wide = dy.float()
        dx.copy_(stored_reference(torch.where(x > 0, wide, slope * wide), dx.dtype, precision))

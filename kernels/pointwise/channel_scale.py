"""Maps times a parameter of one value for each channel: the layer scale of CaiT and ConvNeXt."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.channel_chunks import chunk_of, chunk_place, launch_chunks
from ..language.rounding import stored, stored_reference


@triton.jit(do_not_specialize=["pixels", "chunks", "chunk"])
def _scale_kernel(
    x_ptr, scale_ptr, y_ptr, pixels, channels, chunks, chunk,
    PRECISION: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    sample, start, stop, p, c = chunk_place(pixels, chunks, chunk, PIXELS, CHANNELS)
    scale = tl.load(scale_ptr + c, mask=c < channels, other=0.0)
    for first in range(start, stop, PIXELS):
        mask = (first + p < stop) & (c < channels)
        offs = (sample * pixels + first + p) * channels + c
        y = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32) * scale
        tl.store(y_ptr + offs, stored(y, y_ptr.dtype.element_ty, PRECISION), mask=mask)


@triton.jit(do_not_specialize=["pixels", "chunks", "chunk"])
def _scale_grad_kernel(
    x_ptr, dy_ptr, scale_ptr, dx_ptr, sums_ptr, pixels, channels, chunks, chunk,
    PRECISION: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    sample, start, stop, p, c = chunk_place(pixels, chunks, chunk, PIXELS, CHANNELS)
    scale = tl.load(scale_ptr + c, mask=c < channels, other=0.0)
    total = tl.zeros((PIXELS, CHANNELS), tl.float32)
    for first in range(start, stop, PIXELS):
        mask = (first + p < stop) & (c < channels)
        offs = (sample * pixels + first + p) * channels + c
        dy = tl.load(dy_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        total = tl.fma(dy, tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32), total)
        if dx_ptr is not None:
            dx = stored(dy * scale, dx_ptr.dtype.element_ty, PRECISION)
            tl.store(dx_ptr + offs, dx, mask=mask)
    ptrs = sums_ptr + tl.program_id(0).to(tl.int64) * channels + c
    tl.store(ptrs, tl.sum(total, 0, keep_dims=True), mask=c < channels)


def scale_channels(x: Tensor, scale: Tensor, y: Tensor, *, precision: str = "ieee") -> None:
    """y = x [N, P, C] * scale, float32 [C]. y may be x. The same call on dy gives dx."""
    if x.numel():
        launch_chunks(_scale_kernel, x, (x, scale, y), PRECISION=precision)


def scale_channels_grad(
    x: Tensor, dy: Tensor, scale: Tensor, dx: Tensor | None, sums: Tensor, *,
    precision: str = "ieee",
) -> None:  # fmt: skip
    """The gradient dx of `scale_channels`, and sums by chunk of the scale's gradient.

    sums are float32 [N, `num_chunks`(P, C), 1, C]. dx may be dy or None.
    """
    if x.numel():
        launch_chunks(_scale_grad_kernel, x, (x, dy, scale, dx, sums), PRECISION=precision)


def scale_channels_reference(
    x: Tensor, scale: Tensor, y: Tensor, *, precision: str = "ieee"
) -> None:
    """Computes `scale_channels` in torch."""
    y.copy_(stored_reference(x.float() * scale, y.dtype, precision))


def scale_channels_grad_reference(
    x: Tensor, dy: Tensor, scale: Tensor, dx: Tensor | None, sums: Tensor, *,
    precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `scale_channels_grad` in torch."""
    if not x.numel():
        return
    products = (x.double() * dy.double()).split(chunk_of(*x.shape[1:]), 1)
    sums.copy_(torch.stack([piece.sum(1) for piece in products], 1)[:, :, None])
    if dx is not None:
        scale_channels_reference(dy, scale, dx, precision=precision)

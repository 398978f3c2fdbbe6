"""Maps times a parameter of one value for each channel: the layer scale of CaiT and ConvNeXt.

The scaled map, or parts of it that dropout keeps, may be added to a residual in the same pass. The
bits are those of passes apart: kernels fuse no products with sums.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.channel_chunks import chunk_of, chunk_place, launch_chunks
from ..language.channel_ranges import pitch_of
from ..language.rounding import as_stored, stored, stored_reference
from .dropout_blocks import Drop, arguments_of, dropout_parts_reference, kept_channels

SIZES: Final = ("pixels", "first_sample", "op_id", "least", "chunks", "chunk")
APART: Final = {"enable_fp_fusion": False}


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


@triton.jit(do_not_specialize=SIZES)
def _add_scaled_kernel(
    x_ptr, scale_ptr, residual_ptr, y_ptr, seed_ptr, pixels, channels,
    x_pitch, residual_pitch, y_pitch, first_sample, op_id, least, factor, chunks, chunk,
    PART: tl.constexpr, ROUNDS: tl.constexpr, PRECISION: tl.constexpr,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = y_ptr.dtype.element_ty
    sample, start, stop, p, c = chunk_place(pixels, chunks, chunk, PIXELS, CHANNELS)
    if scale_ptr is not None:
        scale = tl.load(scale_ptr + c, mask=c < channels, other=0.0)
    if PART != "":
        kept = kept_channels(
            seed_ptr, sample, c, channels, first_sample, op_id, least, PART, ROUNDS
        )
    for first in range(start, stop, PIXELS):
        mask = (first + p < stop) & (c < channels)
        row = sample * pixels + first + p
        x = tl.load(x_ptr + (row * x_pitch + c), mask=mask, other=0.0).to(tl.float32)
        residual = tl.load(residual_ptr + (row * residual_pitch + c), mask=mask, other=0.0)
        if scale_ptr is not None:
            x = as_stored(x * scale, dtype)
        if PART != "":
            x = as_stored(tl.where(kept, x * factor, 0.0), dtype)
        y = stored(residual.to(tl.float32) + x, dtype, PRECISION)
        tl.store(y_ptr + (row * y_pitch + c), y, mask=mask)


@triton.jit(do_not_specialize=SIZES)
def _scale_grad_kernel(
    x_ptr, dy_ptr, scale_ptr, dx_ptr, sums_ptr, seed_ptr, pixels, channels,
    x_pitch, dy_pitch, dx_pitch, first_sample, op_id, least, factor, chunks, chunk,
    PART: tl.constexpr, ROUNDS: tl.constexpr, PRECISION: tl.constexpr,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    sample, start, stop, p, c = chunk_place(pixels, chunks, chunk, PIXELS, CHANNELS)
    scale = tl.load(scale_ptr + c, mask=c < channels, other=0.0)
    if PART != "":
        kept = kept_channels(
            seed_ptr, sample, c, channels, first_sample, op_id, least, PART, ROUNDS
        )
    total = tl.zeros((PIXELS, CHANNELS), tl.float32)
    for first in range(start, stop, PIXELS):
        mask = (first + p < stop) & (c < channels)
        row = sample * pixels + first + p
        dy = tl.load(dy_ptr + (row * dy_pitch + c), mask=mask, other=0.0).to(tl.float32)
        if PART != "":
            dy = as_stored(tl.where(kept, dy * factor, 0.0), dy_ptr.dtype.element_ty)
        if sums_ptr is not None:
            x = tl.load(x_ptr + (row * x_pitch + c), mask=mask, other=0.0).to(tl.float32)
            total = tl.fma(dy, x, total)
        if dx_ptr is not None:
            dx = stored(dy * scale, dx_ptr.dtype.element_ty, PRECISION)
            tl.store(dx_ptr + (row * dx_pitch + c), dx, mask=mask)
    if sums_ptr is not None:
        ptrs = sums_ptr + tl.program_id(0).to(tl.int64) * channels + c
        tl.store(ptrs, tl.sum(total, 0, keep_dims=True), mask=c < channels)


def scale_channels(x: Tensor, scale: Tensor, y: Tensor, *, precision: str = "ieee") -> None:
    """y = x [N, P, C] * scale, float32 [C]. y may be x. The same call on dy gives dx."""
    if x.numel():
        launch_chunks(_scale_kernel, x, (x, scale, y), PRECISION=precision)


def add_scaled(
    x: Tensor, scale: Tensor | None, residual: Tensor, y: Tensor, *,
    drop: Drop | None = None, precision: str = "ieee",
) -> None:  # fmt: skip
    """y = residual + x * scale, where `drop` keeps x, times its factor; else y = residual.

    x, residual and y are [N, P, C], of maps or ranges; y may be one of the others. scale is float32
    [C], None for 1.
    """
    if x.numel():
        sizes, constants = arguments_of(drop)
        seed = None if drop is None else drop.seed
        operands, pitches = (x, scale, residual, y, seed), map(pitch_of, (x, residual, y))
        launch_chunks(
            _add_scaled_kernel, x, operands, *pitches, *sizes, **constants, **APART,
            PRECISION=precision,
        )  # fmt: skip


def scale_channels_grad(
    x: Tensor | None, dy: Tensor, scale: Tensor, dx: Tensor | None, sums: Tensor | None, *,
    drop: Drop | None = None, precision: str = "ieee",
) -> None:  # fmt: skip
    """The gradient dx of `scale_channels`, and sums by chunk of the scale's gradient.

    sums are float32 [N, `num_chunks`(P, C), 1, C]. dx may be dy. dx may be None, or x and sums.
    With `drop` the gradients are those of `add_scaled`. Maps may be ranges.
    """
    if dy.numel():
        sizes, constants = arguments_of(drop)
        operands = (x, dy, scale, dx, sums, None if drop is None else drop.seed)
        pitches = (0 if each is None else pitch_of(each) for each in (x, dy, dx))
        launch_chunks(
            _scale_grad_kernel, dy, operands, *pitches, *sizes, **constants, **APART,
            PRECISION=precision,
        )  # fmt: skip


def scale_channels_reference(
    x: Tensor, scale: Tensor, y: Tensor, *, precision: str = "ieee"
) -> None:
    """Computes `scale_channels` in torch."""
    y.copy_(stored_reference(x.float() * scale, y.dtype, precision))


def add_scaled_reference(
    x: Tensor, scale: Tensor | None, residual: Tensor, y: Tensor, *,
    drop: Drop | None = None, precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `add_scaled` in torch."""
    added = torch.empty_like(x, memory_format=torch.contiguous_format).copy_(x)
    if scale is not None:
        scale_channels_reference(added, scale, added)
    added = _dropped(added, drop)
    y.copy_(stored_reference(residual.float() + added.float(), y.dtype, precision))


def scale_channels_grad_reference(
    x: Tensor | None, dy: Tensor, scale: Tensor, dx: Tensor | None, sums: Tensor | None, *,
    drop: Drop | None = None, precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `scale_channels_grad` in torch."""
    if not dy.numel():
        return
    dy = _dropped(dy, drop)
    if x is not None and sums is not None:
        products = (x.double() * dy.double()).split(chunk_of(*dy.shape[1:]), 1)
        sums.copy_(torch.stack([piece.sum(1) for piece in products], 1)[:, :, None])
    if dx is not None:
        scale_channels_reference(dy, scale, dx, precision=precision)


def _dropped(x: Tensor, drop: Drop | None) -> Tensor:
    """The parts of x that are kept, times the factor."""
    if drop is None:
        return x
    seed, *place = drop
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    settings = dict(zip(("part", "p", "op_id", "first_sample"), place, strict=True))
    dropout_parts_reference(x, y, seed, **settings)
    return y

"""Gradients of gated maps and of their gates.

The gradient of a gate is a sum over pixels in a fixed order: over slices of a sample first, then
over the slices. A program sums one slice and computes the map's gradient from the same loads.
Behind a ReLU the same pass masks the gradient.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..codec.sign_bits import passes, passes_reference, words_of
from ..language.channel_ranges import pitch_of
from ..language.rounding import stored, stored_reference
from ..norm.batch_norm_tiles import normalizer
from ..norm.normalized_again import (
    Normalized,
    normalized_again,
    normalized_again_reference,
    settings_of_normalizer,
)
from .channel_broadcast import NUM_WARPS, rows_of_slice, slice_of, stride_of, tiles_of, words_at

SUM_BLOCK: Final = 64  # channels of a program that sums slices


@triton.jit(do_not_specialize=["num_pixels", "slices"])
def _gate_grad_kernel(
    x_ptr, source, gate_ptr, dy_ptr, y_ptr, signs_ptr, masked_ptr, dx_ptr, sums_ptr,
    num_pixels, channels, x_pitch, dy_pitch, y_pitch, signs_pitch, masked_pitch, dx_pitch,
    gate_stride, slices, coefficient, FUNCTION: tl.constexpr,
    PRECISION: tl.constexpr, MASKED_PRECISION: tl.constexpr, ALIGN: tl.constexpr,
    ROWS: tl.constexpr, STEPS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    channels = channels // ALIGN * ALIGN
    x_pitch, dy_pitch = x_pitch // ALIGN * ALIGN, dy_pitch // ALIGN * ALIGN
    dx_pitch = dx_pitch // ALIGN * ALIGN
    y_pitch, masked_pitch = y_pitch // ALIGN * ALIGN, masked_pitch // ALIGN * ALIGN
    sample, first, stop, c = slice_of(num_pixels, channels, ROWS, STEPS, WIDTH)
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    if source is not None:
        at = normalizer(source[0], source[1], source[2], c, c < channels, channels)
    if dx_ptr is not None:
        gate = tl.load(gate_ptr + sample * gate_stride + c, mask=c < channels, other=0.0)
        gate = gate.to(tl.float32)[None, :]
    for start in range(first, stop, ROWS):
        pixels = start + tl.arange(0, ROWS)
        inside = (pixels < stop)[:, None]
        mask = inside & (c < channels)[None, :]
        pixels = (sample * num_pixels + pixels)[:, None]
        ptrs = dy_ptr + pixels * dy_pitch + c[None, :]
        dy = tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
        if signs_ptr is not None:
            dtype: tl.constexpr = signs_ptr.dtype.element_ty
            offs, exist = words_at(pixels, inside, channels, signs_pitch, dtype, WIDTH)
            dy = tl.where(passes(tl.load(signs_ptr + offs, mask=exist, other=0)), dy, 0.0)
        elif y_ptr is not None:
            ptrs = y_ptr + pixels * y_pitch + c[None, :]
            dy = tl.where(tl.load(ptrs, mask=mask, other=0.0) <= 0, 0.0, dy)
        if masked_ptr is not None:
            dy = stored(dy, tl.float32, MASKED_PRECISION)
            ptrs = masked_ptr + pixels * masked_pitch + c[None, :]
            tl.store(ptrs, dy.to(masked_ptr.dtype.element_ty), mask=mask)
        if sums_ptr is not None:
            if x_ptr is None:
                total += dy
            else:
                ptrs = x_ptr + pixels * x_pitch + c[None, :]
                x = tl.load(ptrs, mask=mask, other=0.0)
                if source is not None:
                    x = normalized_again(x, at, coefficient, FUNCTION)
                    total += dy * tl.where(mask, x.to(tl.float32), 0.0)
                else:
                    total += dy * x.to(tl.float32)
        if dx_ptr is not None:
            dx = stored(dy * gate, dx_ptr.dtype.element_ty, PRECISION)
            tl.store(dx_ptr + pixels * dx_pitch + c[None, :], dx, mask=mask)
    if sums_ptr is not None:
        sums_ptr += (sample * slices + tl.program_id(1)) * channels
        tl.store(sums_ptr + c, tl.sum(total, 0), mask=c < channels)


@triton.jit(do_not_specialize=["slices"])
def _sum_slices_kernel(
    sums_ptr, gate_ptr, slices, channels, gate_stride,
    PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    sums_ptr += sample * slices * channels
    for _ in range(slices):
        total += tl.load(sums_ptr + c, mask=c < channels, other=0.0)
        sums_ptr += channels
    ptrs = gate_ptr + sample * gate_stride + c
    tl.store(ptrs, stored(total, gate_ptr.dtype.element_ty, PRECISION), mask=c < channels)


def gate_grad(
    x: Tensor | None, gates: Tensor | None, dy: Tensor, dx: Tensor | None, sums: Tensor | None,
    y: Tensor | None = None, masked: Tensor | None = None, *,
    made_by: Normalized | None = None, precision: str = "ieee", masked_precision: str = "ieee",
) -> None:  # fmt: skip
    """dx = g * gates, and the sums of g * x over slices of pixels. Either output may be None.

    g is dy. Given y, the output of a ReLU [N, P, C] or its sign bits uint8 [N, P, C / 8], g is 0
    where y is not above zero, and `masked` gets g, rounded as products of `masked_precision` read
    it. sums are float32 [N, `gate_slices`(P, C), C]. Without x, for gates that are added, they are
    the sums of g. One of dx and `masked` may be dy. Maps may be channel ranges. x may be what the
    gated map is `made_by`.
    """
    if dy.numel() == 0:
        return
    signs = None
    if y is not None and y.dtype == torch.uint8:
        y, signs = None, words_of(y, dy.shape[2])
    grid, tile = tiles_of(x, dy, y, masked, dx)
    pitches = {
        f"{name}_pitch": 0 if each is None else pitch_of(each)
        for name, each in (
            *(("x", x), ("dy", dy), ("y", y)), *(("signs", signs), ("masked", masked), ("dx", dx)),
        )
    }  # fmt: skip
    _gate_grad_kernel[grid](
        x, gate_ptr=gates, dy_ptr=dy, y_ptr=y, signs_ptr=signs, masked_ptr=masked, dx_ptr=dx,
        sums_ptr=sums, num_pixels=dy.shape[1], channels=dy.shape[2], **pitches,
        gate_stride=0 if gates is None else stride_of(gates), slices=grid[1],
        **settings_of_normalizer(made_by), PRECISION=precision, MASKED_PRECISION=masked_precision,
        **tile, num_warps=NUM_WARPS,
    )  # fmt: skip


def sum_slices(sums: Tensor, gates: Tensor, *, precision: str = "ieee") -> None:
    """gates [N, C] = the sums over slices of `sums` [N, slices, C] from `gate_grad`, in order."""
    samples, slices, channels = sums.shape
    if samples == 0:
        return
    _sum_slices_kernel[(samples, triton.cdiv(channels, SUM_BLOCK))](
        sums,
        gates,
        slices,
        channels,
        stride_of(gates),
        PRECISION=precision,
        BLOCK=SUM_BLOCK,
        num_warps=1,
    )


def gate_grad_reference(
    x: Tensor | None, gates: Tensor | None, dy: Tensor, dx: Tensor | None, sums: Tensor | None,
    y: Tensor | None = None, masked: Tensor | None = None, *,
    made_by: Normalized | None = None, precision: str = "ieee", masked_precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `gate_grad` in torch."""
    if y is not None:
        dy = dy.masked_fill(~passes_reference(y) if y.dtype == torch.uint8 else y <= 0, 0.0)
    if masked is not None:
        dy = stored_reference(dy, masked.dtype, masked_precision)
        masked.copy_(dy)
    wide = dy.double()
    if sums is not None:
        terms = wide if x is None else wide * normalized_again_reference(x, made_by).double()
        rows = rows_of_slice(dy.shape[2])
        sums.copy_(torch.stack([part.sum(1) for part in terms.split(rows, 1)], 1))
    if dx is not None and gates is not None:
        product = (wide * gates.double()[:, None]).float()
        dx.copy_(stored_reference(product, dx.dtype, precision))


def sum_slices_reference(sums: Tensor, gates: Tensor, *, precision: str = "ieee") -> None:
    """Computes `sum_slices` in torch."""
    gates.copy_(stored_reference(sums.double().sum(1).float(), gates.dtype, precision))

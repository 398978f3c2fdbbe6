"""The weight-gradient kernel that gathers by pointers: any filter, stride, padding and groups.

One sample of a map must have fewer than 2^31 elements.
"""

from typing import Final

import triton
import triton.language as tl

from .program_steps import first_channel, places_of, share_of, steps_of, sums_of_split

SIZES: Final = (
    "first", "num_samples", "in_h", "in_w", "out_h", "out_w", "pad_h", "pad_w", "dil_h", "dil_w",
    "unit", "splits", "range_start",
)  # fmt: skip


@triton.jit
def _columns_of(
    pid_c, in_c, R: tl.constexpr, S: tl.constexpr, FLATTEN: tl.constexpr, BLOCK_C: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Taps, channels, columns of the gradient [BLOCK_C] and their mask, of a tile's columns."""
    if FLATTEN:
        offs_e = pid_c * BLOCK_C + tl.arange(0, BLOCK_C)
        tap = offs_e // in_c
        offs_c = offs_e % in_c
        mask_c = offs_e < R * S * in_c
    else:
        tap = pid_c % (R * S)
        offs_c = pid_c // (R * S) * BLOCK_C + tl.arange(0, BLOCK_C)
        offs_e = tap * in_c + offs_c
        mask_c = offs_c < in_c
    return tap, offs_c, offs_e, mask_c


@triton.jit(do_not_specialize=SIZES)
def grad_weight_gather_kernel(
    x_ptr, dy_ptr, partials_ptr, bands, first,
    num_samples, in_h, in_w, out_h, out_w, in_c, out_c, in_channels, channels, blocks,
    pad_h, pad_w, dil_h, dil_w,
    x_pitch, dy_pitch, unit, splits, range_start,
    R: tl.constexpr, S: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    ALIGN: tl.constexpr, FLATTEN: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
) -> None:  # fmt: skip
    """A program sums [BLOCK_K, BLOCK_C] of the gradient of one block of output channels.

    BLOCK_C are channels of one tap, or with FLATTEN taps and channels as one axis. in_c are the
    channels of a band, out_c those of a block (bands.py). Numbers of channels and pitches are in
    units of ALIGN channels, as in pointer.py. A step is a run of output pixels of a unit of
    samples.
    """
    in_c *= ALIGN
    out_c *= ALIGN
    in_channels *= ALIGN
    channels *= ALIGN
    x_pitch *= ALIGN
    dy_pitch *= ALIGN
    tiles_k = tl.cdiv(out_c, BLOCK_K)
    tiles_c = tl.cdiv(R * S * in_c, BLOCK_C) if FLATTEN else R * S * tl.cdiv(in_c, BLOCK_C)
    pid = tl.program_id(0)
    pid_c = pid % tiles_c
    pid_k = pid // tiles_c % tiles_k
    split = pid // (tiles_c * tiles_k * blocks)
    block = pid // (tiles_c * tiles_k) % blocks

    offs_k = pid_k * BLOCK_K + tl.arange(0, BLOCK_K)
    mask_k = offs_k < out_c
    tap, offs_c, offs_e, mask_c = _columns_of(pid_c, in_c, R, S, FLATTEN, BLOCK_C)
    shift_h = tap // S * dil_h - pad_h
    shift_w = tap % S * dil_w - pad_w
    mask = mask_k[:, None] & mask_c[None, :]
    if bands is None:
        row = split.to(tl.int64) * out_c + offs_k
        partial_ptrs = partials_ptr + row[:, None] * (R * S * in_c) + offs_e[None, :]
    else:
        k, c = block * out_c, first_channel(block * out_c, bands)
        taps = tap[None, :] if FLATTEN else tap
        offs, own = places_of(k + offs_k, taps, c + offs_c, bands)
        partial_ptrs = sums_of_split(partials_ptr, split, bands) + offs
        mask &= own
        mask_k &= k + offs_k < channels
        mask_c &= c + offs_c < in_channels
        x_ptr += tl.multiple_of(c, ALIGN)
        dy_ptr += k
    acc = tl.load(partial_ptrs, mask=mask & (first == 0), other=0.0)

    pixels = out_h * out_w
    start, share = share_of(range_start + split, splits, tl.cdiv(unit * pixels, BLOCK_P))
    last = tl.cdiv(num_samples % unit * pixels, BLOCK_P)
    for i in range(steps_of(start, share, unit, num_samples, last)):
        first_sample = (i // share * unit).to(tl.int64)
        pixel = (start + i % share) * BLOCK_P + tl.arange(0, BLOCK_P)  # of the unit
        sample = first_sample + pixel // pixels
        mask_p = (pixel < unit * pixels) & (sample < num_samples)
        h = pixel // out_w % out_h * STRIDE_H
        w = pixel % out_w * STRIDE_W
        dy = tl.load(
            dy_ptr + (first_sample * pixels + pixel)[:, None] * dy_pitch + offs_k[None, :],
            mask=mask_p[:, None] & mask_k[None, :], other=0.0,
        )  # [BLOCK_P, BLOCK_K]  # fmt: skip
        if FLATTEN:
            h = h[:, None] + shift_h[None, :]
            w = w[:, None] + shift_w[None, :]
            mask_x = mask_p[:, None] & (h >= 0) & (h < in_h) & (w >= 0) & (w < in_w)
            offs_x = (sample[:, None] * in_h + h) * in_w + w
        else:
            h += shift_h
            w += shift_w
            mask_x = (mask_p & (h >= 0) & (h < in_h) & (w >= 0) & (w < in_w))[:, None]
            offs_x = ((sample * in_h + h) * in_w + w)[:, None]
        x = tl.load(
            x_ptr + offs_x * x_pitch + offs_c[None, :],
            mask=mask_x & mask_c[None, :], other=0.0,
        )  # [BLOCK_P, BLOCK_C]  # fmt: skip
        acc = tl.dot(dy.T, x, acc, input_precision=PRECISION)
    tl.store(partial_ptrs, acc, mask=mask)

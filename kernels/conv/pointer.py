"""The convolution kernel that loads by pointers: any filter, stride, padding, dilation and groups.

It computes what the kernels with tensor descriptors do not: strided and grouped layers, few
channels, and GPUs before Hopper. One sample of a map must have fewer than 2^31 elements.
"""

from typing import Final

import triton
import triton.language as tl

from ..language.rounding import add_product, stored
from .bands import band_start
from .epilogue import max_of_taps, packed_codes, rectified, where_positive

SIZES: Final = (
    "num_samples", "in_h", "in_w", "out_h", "out_w", "pad_h", "pad_w", "dil_h", "dil_w",
    "last_band",
)  # fmt: skip


@triton.jit
def _first_tap(phase, pad, dil, UP: tl.constexpr, STEP: tl.constexpr):
    """The first tap in [0, STEP) that meets the input at outputs of a phase; STEP if none does."""
    first = STEP
    for tap in tl.static_range(STEP - 1, -1, -1):
        first = tl.where((phase - pad + tap * dil) % UP == 0, tap, first)
    return first


@triton.jit
def _tile_pixels(pid, height, width, BLOCK_P: tl.constexpr):
    """Samples (int64), rows and columns of BLOCK_P consecutive pixels."""
    start = pid.to(tl.int64) * BLOCK_P
    first = start // (height * width)
    offs = (start - first * (height * width)).to(tl.int32) + tl.arange(0, BLOCK_P)
    pixel = offs % (height * width)
    return first + offs // (height * width), pixel // width, pixel % width


@triton.jit
def _window_pixels(pid, height, width, BLOCK_P: tl.constexpr):
    """`_tile_pixels` of BLOCK_P / 4 consecutive windows 2x2. height and width count windows."""
    start = pid.to(tl.int64) * (BLOCK_P // 4)
    first = start // (height * width)
    offs_p = tl.arange(0, BLOCK_P)
    offs = (start - first * (height * width)).to(tl.int32) + offs_p // 4
    window = offs % (height * width)
    row = window // width * 2 + offs_p % 4 // 2
    return first + offs // (height * width), row, window % width * 2 + offs_p % 2


@triton.jit
def _store_windows(
    y_ptr, codes_ptr, y, pid, offs_k, num_windows, channels, out_c, y_pitch,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Store maxima and argmax codes of y [BLOCK_P, BLOCK_K], four rows of which are a window."""
    upper, lower = tl.split(y.reshape(BLOCK_P // 4, 2, 2, BLOCK_K).permute(0, 3, 2, 1))
    first, second = tl.split(upper)
    third, fourth = tl.split(lower)
    largest, tap = max_of_taps(first, second, third, fourth)  # [BLOCK_P / 4, BLOCK_K]
    window = pid.to(tl.int64) * (BLOCK_P // 4) + tl.arange(0, BLOCK_P // 4)
    mask = (window < num_windows)[:, None]
    ptrs = y_ptr + window[:, None] * y_pitch + offs_k[None, :]
    tl.store(ptrs, largest.to(y_ptr.dtype.element_ty), mask=mask & (offs_k < out_c)[None, :])
    bytes_k = tl.min(offs_k) // 4 + tl.arange(0, BLOCK_K // 4)
    ptrs = codes_ptr + window[:, None] * (channels // 4) + bytes_k[None, :]
    codes = packed_codes(tap, BLOCK_P // 4, BLOCK_K)
    tl.store(ptrs, codes, mask=mask & (bytes_k < out_c // 4)[None, :])


@triton.jit(do_not_specialize=SIZES)
def conv_kernel(
    x_ptr, packed_ptr, bias_ptr, mask_ptr, y_ptr, codes_ptr,
    num_samples, in_h, in_w, out_h, out_w, in_c, out_c, in_width, out_width,
    last_band, in_channels, channels, pad_h, pad_w, dil_h, dil_w,
    x_pitch, mask_pitch, y_pitch,
    R: tl.constexpr, S: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    UP_H: tl.constexpr, UP_W: tl.constexpr, STEP_H: tl.constexpr, STEP_W: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, BITS: tl.constexpr, RELU: tl.constexpr,
    POOL: tl.constexpr, BANDS: tl.constexpr, ALIGN: tl.constexpr, FLATTEN: tl.constexpr,
    PRECISION: tl.constexpr, OUT_PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
) -> None:  # fmt: skip
    """Output h sums taps r of input (h * STRIDE - pad + r * dil) / UP, where whole; w likewise.

    UP is 1 in a forward convolution and the stride in a data gradient. The outputs of a gradient
    form UP_H * UP_W phases. Those of a phase meet every STEP-th tap only. in_c are the channels of
    a band, out_c those of a block (bands.py). Numbers of channels and pitches are in units of ALIGN
    channels, so that Triton knows what divides them: 72->72/2 @112 else spills 3.5 KB of registers
    (sm_90a, triton 3.9, 2026-11). With FLATTEN taps and channels are one axis, for few channels.
    """
    in_c *= ALIGN
    out_c *= ALIGN
    in_channels *= ALIGN
    channels *= ALIGN
    x_pitch *= ALIGN
    mask_pitch *= ALIGN
    y_pitch *= ALIGN
    tiles_k = tl.cdiv(out_c, BLOCK_K)
    block = tl.program_id(1) // (UP_H * UP_W)
    phase_h = tl.program_id(1) % (UP_H * UP_W) // UP_W
    phase_w = tl.program_id(1) % UP_W
    if POOL:
        sample, row, column = _window_pixels(
            tl.program_id(0) // tiles_k, out_h // 2, out_w // 2, BLOCK_P
        )
    else:
        sample, row, column = _tile_pixels(
            tl.program_id(0) // tiles_k, tl.cdiv(out_h, UP_H), tl.cdiv(out_w, UP_W), BLOCK_P
        )
        row = row * UP_H + phase_h
        column = column * UP_W + phase_w
    mask_p = (sample < num_samples) & (row < out_h) & (column < out_w)
    offs_k = tl.program_id(0) % tiles_k * BLOCK_K + tl.arange(0, BLOCK_K)
    mask_k = offs_k < out_c
    offs_c = tl.arange(0, BLOCK_C)
    stop_c = in_c
    if BANDS:
        mask_k &= block * out_c + offs_k < channels
        band = band_start(block * out_c, in_width, out_width, last_band)
        x_ptr += tl.multiple_of(band, ALIGN)
        stop_c = tl.minimum(in_c, in_channels - band)

    in_row = row * STRIDE_H - pad_h
    in_column = column * STRIDE_W - pad_w
    x_ptrs = x_ptr + sample * in_h * in_w * x_pitch  # [BLOCK_P]
    packed_ptrs = packed_ptr + (block * out_c + offs_k).to(tl.int64) * (R * S * in_c)  # [BLOCK_K]
    acc = tl.zeros((BLOCK_P, BLOCK_K), tl.float32)
    if FLATTEN:
        for start in range(0, R * S * in_c, BLOCK_C):
            offs_e = start + offs_c
            tap = offs_e // in_c
            h = in_row[:, None] + (tap // S * dil_h)[None, :]
            w = in_column[:, None] + (tap % S * dil_w)[None, :]
            mask = mask_p[:, None] & (offs_e < R * S * in_c)[None, :]
            mask &= (h % UP_H == 0) & (w % UP_W == 0)
            mask &= (h >= 0) & (h < in_h * UP_H) & (w >= 0) & (w < in_w * UP_W)
            offs_x = (h // UP_H * in_w + w // UP_W) * x_pitch + (offs_e % in_c)[None, :]
            x = tl.load(x_ptrs[:, None] + offs_x, mask=mask, other=0.0)  # [BLOCK_P, BLOCK_C]
            mask = mask_k[:, None] & (offs_e < R * S * in_c)[None, :]
            weight = tl.load(packed_ptrs[:, None] + offs_e[None, :], mask=mask, other=0.0)
            acc = add_product(acc, x, weight.T, PRECISION)
    else:
        first_r = _first_tap(phase_h, pad_h, dil_h, UP_H, STEP_H)
        first_s = _first_tap(phase_w, pad_w, dil_w, UP_W, STEP_W)
        num_r = tl.where(first_r < STEP_H, tl.cdiv(R - first_r, STEP_H), 0)
        num_s = tl.where(first_s < STEP_W, tl.cdiv(S - first_s, STEP_W), 0)
        tiles_c = tl.cdiv(in_c, BLOCK_C)
        for step in range(num_r * num_s * tiles_c):
            tap = step // tiles_c
            r = first_r + tap // num_s * STEP_H
            s = first_s + tap % num_s * STEP_W
            c = step % tiles_c * BLOCK_C + offs_c
            h = in_row + r * dil_h
            w = in_column + s * dil_w
            mask_x = mask_p & (h >= 0) & (h < in_h * UP_H) & (w >= 0) & (w < in_w * UP_W)
            offs_x = (h // UP_H * in_w + w // UP_W) * x_pitch
            mask_c = c < stop_c
            x = tl.load(
                (x_ptrs + offs_x)[:, None] + c[None, :],
                mask=mask_x[:, None] & mask_c[None, :], other=0.0,
            )  # [BLOCK_P, BLOCK_C]  # fmt: skip
            weight = tl.load(
                packed_ptrs[:, None] + ((r * S + s) * in_c + c)[None, :],
                mask=mask_k[:, None] & mask_c[None, :], other=0.0,
            )  # [BLOCK_K, BLOCK_C]  # fmt: skip
            acc = add_product(acc, x, weight.T, PRECISION)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + block * out_c + offs_k, mask=mask_k, other=0.0)[None, :]
    if RELU:
        acc = rectified(acc)
    if POOL:
        num_windows = num_samples.to(tl.int64) * (out_h // 2) * (out_w // 2)
        first_k = block * out_c
        rounded = stored(acc, y_ptr.dtype.element_ty, OUT_PRECISION).to(tl.float32)
        _store_windows(
            y_ptr + first_k, codes_ptr + first_k // 4, rounded,
            tl.program_id(0) // tiles_k, offs_k, num_windows,
            channels, tl.minimum(out_c, channels - first_k), y_pitch, BLOCK_P, BLOCK_K,
        )  # fmt: skip
    else:
        pixel = (sample * out_h + row) * out_w + column
        offs_k += block * out_c
        y_ptrs = y_ptr + pixel[:, None] * y_pitch + offs_k[None, :]
        mask = mask_p[:, None] & mask_k[None, :]
        y = stored(acc, y_ptr.dtype.element_ty, OUT_PRECISION)
        tl.store(y_ptrs, y, mask=mask)
        if HAS_MASK:
            # y is read back: with a masked accumulator ptxas serializes the products (triton 3.6).
            tl.debug_barrier()  # another thread may have stored what this one loads
            y = tl.load(y_ptrs, mask=mask, other=0.0)
            mask_ptrs = mask_ptr + pixel[:, None] * mask_pitch
            if BITS:
                signs = tl.load(mask_ptrs + (offs_k // 8)[None, :], mask=mask, other=0)
                y = tl.where((signs >> (offs_k % 8)[None, :]) & 1 != 0, y, 0.0)
            else:
                positive = tl.load(mask_ptrs + offs_k[None, :], mask=mask, other=0.0)
                y = where_positive(positive, y)
            tl.store(y_ptrs, y, mask=mask)

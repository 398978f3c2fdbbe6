"""The convolution kernel that loads by tensor descriptors: TMA on Hopper.

Rows and columns outside a map are filled with zeros by the loads themselves.
"""

from typing import Final

import triton
import triton.language as tl

from .conv_epilogue import max_of_taps, packed_codes, rectified, where_positive
from .rounding import stored

SIZES: Final = ("num_samples", "height", "width", "pad_h", "pad_w", "dil_h", "dil_w")


@triton.jit
def _max_of_windows(y, BLOCK_K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Maxima and their taps of windows 2x2 of y [BLOCK_K, ROWS * COLUMNS], [BLOCK_K, a quarter]."""
    left, right = tl.split(y.reshape(BLOCK_K, ROWS // 2, 2, COLUMNS // 2, 2))
    first, third = tl.split(left.permute(0, 1, 3, 2))
    second, fourth = tl.split(right.permute(0, 1, 3, 2))
    largest, tap = max_of_taps(first, second, third, fourth)
    WINDOWS: tl.constexpr = ROWS * COLUMNS // 4
    return largest.reshape(BLOCK_K, WINDOWS), tap.reshape(BLOCK_K, WINDOWS)


@triton.jit
def _store_codes(
    codes_ptr, tap, n, h, w, k, num_samples, height, width, out_c,
    BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Pack and store the taps [BLOCK_K, windows] of a box of windows that starts at (n, h, w)."""
    codes = packed_codes(tap.T, BLOCK_N * BLOCK_H * BLOCK_W, BLOCK_K)
    window = tl.arange(0, BLOCK_N * BLOCK_H * BLOCK_W)[:, None]
    sample = (n + window // (BLOCK_H * BLOCK_W)).to(tl.int64)
    row = h + window // BLOCK_W % BLOCK_H
    column = w + window % BLOCK_W
    offs_k = k // 4 + tl.arange(0, BLOCK_K // 4)[None, :]
    mask = (sample < num_samples) & (row < height) & (column < width) & (offs_k < out_c // 4)
    offs = ((sample * height + row) * width + column) * (out_c // 4) + offs_k
    tl.store(codes_ptr + offs, codes, mask=mask)


@triton.jit
def _store_part(y_desc, mask_desc, y, n, h, w, k, HAS_MASK: tl.constexpr, PRECISION: tl.constexpr):
    """Store y [channels, pixels] as the box at (n, h, w), where the mask's box lets it pass."""
    y = y.T.reshape(y_desc.block_shape)
    if HAS_MASK:
        y = where_positive(mask_desc.load([n, h, w, k]), y)
    y_desc.store([n, h, w, k], stored(y, y_desc.dtype, PRECISION))


@triton.jit(do_not_specialize=SIZES)
def conv_box_kernel(
    x_desc, packed_desc, bias_ptr, mask_desc, y_desc, codes_ptr,
    num_samples, height, width, in_c, out_c, pad_h, pad_w, dil_h, dil_w,
    R: tl.constexpr, S: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    RELU: tl.constexpr, POOL: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr,
    HALF_N: tl.constexpr, HALF_H: tl.constexpr, HALF_W: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr, STAGES: tl.constexpr, FLATTEN: tl.constexpr,
) -> None:  # fmt: skip
    """Stride 1: a tile of outputs is a box of pixels, and a tap is the same box moved.

    The box is operand B of the products. As operand A its reshape goes through registers, which on
    triton 3.6 gave wrong sums that changed from run to run (error 1.5e-1, 128x256, H200, 2026-11).
    Outputs leave by boxes HALF_N * HALF_H * HALF_W, which may be half a tile to save shared memory.
    With POOL they are the maxima of windows 2x2, and height and width count the rows and columns
    that lie in one.
    """
    PIXELS: tl.constexpr = BLOCK_N * BLOCK_H * BLOCK_W
    tiles_h = tl.cdiv(height, BLOCK_H)
    tiles_w = tl.cdiv(width, BLOCK_W)
    tiles_k = tl.cdiv(out_c, BLOCK_K)
    tiles_c = tl.cdiv(in_c, BLOCK_C)
    num_tiles = tl.cdiv(num_samples, BLOCK_N) * tiles_h * tiles_w * tiles_k
    for tile in tl.range(tl.program_id(0), num_tiles, tl.num_programs(0), flatten=FLATTEN):
        k = tile % tiles_k * BLOCK_K
        box = tile // tiles_k
        w = box % tiles_w * BLOCK_W
        h = box // tiles_w % tiles_h * BLOCK_H
        n = box // (tiles_w * tiles_h) * BLOCK_N
        acc = tl.zeros((BLOCK_K, PIXELS), tl.float32)
        for step in tl.range(0, R * S * tiles_c, num_stages=STAGES):
            tap = step // tiles_c
            c = step % tiles_c * BLOCK_C
            x = x_desc.load([n, h - pad_h + tap // S * dil_h, w - pad_w + tap % S * dil_w, c])
            weight = packed_desc.load([k, tap * in_c + c])
            acc = tl.dot(weight, x.reshape(PIXELS, BLOCK_C).T, acc, input_precision=PRECISION)
        if HAS_BIAS:
            offs_k = k + tl.arange(0, BLOCK_K)
            acc += tl.load(bias_ptr + offs_k, mask=offs_k < out_c, other=0.0)[:, None]
        if RELU:
            acc = rectified(acc)
        if POOL:
            rounded = stored(acc, y_desc.dtype, PRECISION).to(tl.float32)
            largest, tap = _max_of_windows(rounded, BLOCK_K, BLOCK_N * BLOCK_H, BLOCK_W)
            _store_part(y_desc, mask_desc, largest, n, h // 2, w // 2, k, False, "ieee")
            _store_codes(
                codes_ptr, tap, n, h // 2, w // 2, k, num_samples, height // 2, width // 2, out_c,
                BLOCK_N, BLOCK_H // 2, BLOCK_W // 2, BLOCK_K,
            )  # fmt: skip
        elif HALF_N * HALF_H * HALF_W < PIXELS:
            low, high = tl.split(acc.reshape(BLOCK_K, 2, PIXELS // 2).permute(0, 2, 1))
            _store_part(y_desc, mask_desc, low, n, h, w, k, HAS_MASK, PRECISION)
            n += BLOCK_N - HALF_N
            h += BLOCK_H - HALF_H
            w += BLOCK_W - HALF_W
            _store_part(y_desc, mask_desc, high, n, h, w, k, HAS_MASK, PRECISION)
        else:
            _store_part(y_desc, mask_desc, acc, n, h, w, k, HAS_MASK, PRECISION)

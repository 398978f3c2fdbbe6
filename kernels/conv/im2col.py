"""The convolution kernel for few input channels: taps and channels are one axis of its products.

The kernel is bound by its output, which tensor descriptors store while other programs compute.
"""

from typing import Final

import triton
import triton.language as tl

from .epilogue import store_sums

SIZES: Final = (
    "num_samples", "in_h", "in_w", "height", "width", "pad_h", "pad_w", "dil_h", "dil_w",
)  # fmt: skip


@triton.jit(do_not_specialize=SIZES)
def conv_im2col_kernel(
    x_ptr, packed_ptr, bias_ptr, y_desc, codes_ptr, moments_ptr,
    num_samples, in_h, in_w, height, width, out_c, pad_h, pad_w, dil_h, dil_w,
    R: tl.constexpr, S: tl.constexpr, IN_C: tl.constexpr, PITCH: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    HAS_BIAS: tl.constexpr, RELU: tl.constexpr, POOL: tl.constexpr,
    PRECISION: tl.constexpr, OUT_PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_E: tl.constexpr, PARTS: tl.constexpr,
) -> None:  # fmt: skip
    """A program computes one box of pixels. Its sides are powers of two, which saves divisions.

    IN_C is a constant, because the offsets of taps would else need divisions.
    """
    PIXELS: tl.constexpr = BLOCK_N * BLOCK_H * BLOCK_W
    tiles_h = tl.cdiv(height, BLOCK_H)
    tiles_w = tl.cdiv(width, BLOCK_W)
    tiles_k = tl.cdiv(out_c, BLOCK_K)
    k = tl.program_id(0) % tiles_k * BLOCK_K
    box = tl.program_id(0) // tiles_k
    w = box % tiles_w * BLOCK_W
    h = box // tiles_w % tiles_h * BLOCK_H
    n = box // (tiles_w * tiles_h) * BLOCK_N

    pixel = tl.arange(0, PIXELS)
    sample = pixel // (BLOCK_H * BLOCK_W)
    in_row = (h + pixel // BLOCK_W % BLOCK_H) * STRIDE_H - pad_h
    in_column = (w + pixel % BLOCK_W) * STRIDE_W - pad_w
    mask_p = n + sample < num_samples
    offs_p = (sample * in_h + in_row) * in_w + in_column  # [PIXELS], in pixels of the input
    x_ptr += n.to(tl.int64) * in_h * in_w * PITCH
    offs_k = k + tl.arange(0, BLOCK_K)
    packed_ptrs = packed_ptr + offs_k[:, None] * (R * S * IN_C)
    acc = tl.zeros((BLOCK_K, PIXELS), tl.float32)
    for start in range(0, R * S * IN_C, BLOCK_E):
        offs_e = start + tl.arange(0, BLOCK_E)
        mask_e = offs_e < R * S * IN_C
        r = offs_e // (S * IN_C) * dil_h
        s = offs_e // IN_C % S * dil_w
        row = in_row[:, None] + r[None, :]
        column = in_column[:, None] + s[None, :]
        mask = (row >= 0) & (row < in_h) & (column >= 0) & (column < in_w)
        offs_x = offs_p[:, None] * PITCH + ((r * in_w + s) * PITCH + offs_e % IN_C)[None, :]
        x = tl.load(x_ptr + offs_x, mask=mask & mask_p[:, None] & mask_e[None, :], other=0.0)
        mask = (offs_k < out_c)[:, None] & mask_e[None, :]
        weight = tl.load(packed_ptrs + offs_e[None, :], mask=mask, other=0.0)
        acc = tl.dot(weight, x.T, acc, input_precision=PRECISION)
    store_sums(
        acc, bias_ptr, None, None, y_desc, codes_ptr, moments_ptr,
        n, h, w, k, num_samples, height, width, out_c, out_c,
        HAS_BIAS, False, False, RELU, POOL, OUT_PRECISION,
        BLOCK_N, BLOCK_H, BLOCK_W, BLOCK_K, PARTS,
    )  # fmt: skip

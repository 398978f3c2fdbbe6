"""The convolution kernel for few channels: a product is over the windows of all filter rows.

Taps of few channels make short products, and a load of its own for every tap takes longer than all
of them. The weights of adjacent outputs lie side by side in the windows, with zeros elsewhere.
"""

from typing import Final

import triton
import triton.language as tl

from ..language.rounding import stored
from .epilogue import (
    max_of_windows,
    rectified,
    store_codes,
    store_sums,
    where_positive,
)
from .row_windows import load_windows, place_windows, size_of_sample

SIZES: Final = ("num_samples", "height", "width")


@triton.jit
def _weights_of(
    packed_ptr, k, R: tl.constexpr, S: tl.constexpr, C: tl.constexpr, OUT_C: tl.constexpr,
    STRIDE_W: tl.constexpr, OUTPUTS: tl.constexpr, LEAD: tl.constexpr, E_ROW: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Weights [OUTPUTS * BLOCK_K, BLOCK_E] of a step of the windows, for each step."""
    rows = tl.arange(0, OUTPUTS * BLOCK_K)
    offs_k = k + rows % BLOCK_K
    weights = ()
    for start in tl.static_range(0, R * E_ROW, BLOCK_E):
        offs_e = start + tl.arange(0, BLOCK_E)
        tap = (offs_e % E_ROW - LEAD)[None, :] - (rows // BLOCK_K * (STRIDE_W * C))[:, None]
        mask = (offs_k < OUT_C)[:, None] & (offs_e < R * E_ROW)[None, :]
        place = (offs_k * R)[:, None] + (offs_e // E_ROW)[None, :]
        mask &= (tap >= 0) & (tap < S * C)
        weights += (tl.load(packed_ptr + place * (S * C) + tap, mask, other=0.0),)
    return weights


@triton.jit
def _windows_of(
    x_ptr, tile, tiles_h, tiles_w, num_samples, geometry,
    R: tl.constexpr, C: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, OUTPUTS: tl.constexpr, LEAD: tl.constexpr,
    E_ROW: tl.constexpr, V: tl.constexpr, VC: tl.constexpr, PITCH: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """The windows of a tile, [groups, BLOCK_E] for each step; zeros of tiles behind the last."""
    n = tile // (tiles_w * tiles_h) * BLOCK_N
    group = tl.arange(0, BLOCK_N * BLOCK_H * BLOCK_W)
    sample = group // (BLOCK_H * BLOCK_W)
    row = tile // tiles_w % tiles_h * BLOCK_H + group // BLOCK_W % BLOCK_H
    column = tile % tiles_w * BLOCK_W + group % BLOCK_W
    in_row, place, offs = place_windows(
        n + sample < num_samples, sample, row, column, geometry, PITCH, C, STRIDE_H, STRIDE_W,
        OUTPUTS, V,
    )  # fmt: skip
    x_ptr += n.to(tl.int64) * size_of_sample(geometry, PITCH, C, V)
    windows = ()
    for start in tl.static_range(0, R * E_ROW, BLOCK_E):
        offs_e = start + tl.arange(0, BLOCK_E)
        windows += (
            load_windows(
                x_ptr, in_row, place, offs, offs_e, geometry, PITCH, C, R, LEAD, E_ROW, V, VC, ""
            ),
        )
    return windows


@triton.jit
def _store_by_pointers(
    acc, bias_ptr, mask_ptr, y_ptr, codes_ptr, n, h, w, k, num_samples, height, width,
    OUT_C: tl.constexpr, PITCH: tl.constexpr, MASK_PITCH: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, BITS: tl.constexpr,
    RELU: tl.constexpr, POOL: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """`store_sums` of a map that TMA cannot move."""
    offs_k = k + tl.arange(0, BLOCK_K)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + offs_k, mask=offs_k < OUT_C, other=0.0)[:, None]
    if RELU:
        acc = rectified(acc)
    SIDE: tl.constexpr = 2 if POOL else 1
    if POOL:
        rounded = stored(acc, y_ptr.dtype.element_ty, PRECISION).to(tl.float32)
        acc, tap = max_of_windows(rounded, BLOCK_K, BLOCK_N * BLOCK_H, BLOCK_W)
        store_codes(
            codes_ptr, tap, n, h // 2, w // 2, k, num_samples, height // 2, width // 2,
            OUT_C, OUT_C, BLOCK_N, BLOCK_H // 2, BLOCK_W // 2, BLOCK_K,
        )  # fmt: skip
    ROWS: tl.constexpr = BLOCK_H // SIDE
    COLUMNS: tl.constexpr = BLOCK_W // SIDE
    pixel = tl.arange(0, BLOCK_N * ROWS * COLUMNS)
    sample = n + pixel // (ROWS * COLUMNS)
    row = h // SIDE + pixel // COLUMNS % ROWS
    column = w // SIDE + pixel % COLUMNS
    inside = (sample < num_samples) & (row < height // SIDE) & (column < width // SIDE)
    place = (sample.to(tl.int64) * (height // SIDE) + row) * (width // SIDE) + column
    y = stored(acc.T, y_ptr.dtype.element_ty, PRECISION)
    mask = inside[:, None] & (offs_k < OUT_C)[None, :]
    if HAS_MASK:
        mask_ptrs = mask_ptr + (place * MASK_PITCH)[:, None]
        if BITS:
            signs = tl.load(mask_ptrs + (offs_k // 8)[None, :], mask=mask, other=0)
            y = tl.where((signs >> (offs_k % 8)[None, :]) & 1 != 0, y, 0.0)
        else:
            y = where_positive(tl.load(mask_ptrs + offs_k[None, :], mask=mask, other=0.0), y)
    tl.store(y_ptr + (place * PITCH)[:, None] + offs_k[None, :], y, mask=mask)


@triton.jit(do_not_specialize=SIZES)
def conv_windows_kernel(
    x_ptr, packed_ptr, bias_ptr, mask, mask_strides, y, codes_ptr, moments_ptr,
    geometry, num_samples, height, width,
    R: tl.constexpr, S: tl.constexpr, C: tl.constexpr, STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr, OUTPUTS: tl.constexpr, LEAD: tl.constexpr, E_ROW: tl.constexpr,
    V: tl.constexpr, VC: tl.constexpr, OUT_C: tl.constexpr,
    PITCH: tl.constexpr, Y_PITCH: tl.constexpr, MASK_PITCH: tl.constexpr, Y_IS_BOX: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, BITS: tl.constexpr, RELU: tl.constexpr,
    POOL: tl.constexpr, OUT_PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_E: tl.constexpr, PARTS: tl.constexpr,
) -> None:  # fmt: skip
    """A tile is a box of groups of OUTPUTS adjacent pixels of a row.

    height and width count pixels. A program has the weights of its output channels in shared
    memory. Products are of all outputs of a group at once.
    """
    GROUPS: tl.constexpr = BLOCK_N * BLOCK_H * BLOCK_W
    WIDTH: tl.constexpr = BLOCK_W * OUTPUTS
    k = tl.program_id(1) * BLOCK_K
    weights = _weights_of(
        packed_ptr, k, R, S, C, OUT_C, STRIDE_W, OUTPUTS, LEAD, E_ROW, BLOCK_K, BLOCK_E
    )
    tiles_h, tiles_w = tl.cdiv(height, BLOCK_H), tl.cdiv(width, WIDTH)
    num_tiles = tl.cdiv(num_samples, BLOCK_N) * tiles_h * tiles_w
    windows = _windows_of(
        x_ptr, tl.program_id(0), tiles_h, tiles_w, num_samples, geometry,
        R, C, STRIDE_H, STRIDE_W, OUTPUTS, LEAD, E_ROW, V, VC, PITCH,
        BLOCK_N, BLOCK_H, BLOCK_W, BLOCK_E,
    )  # fmt: skip
    for tile in tl.range(tl.program_id(0), num_tiles, tl.num_programs(0), num_stages=1):
        ahead = _windows_of(
            x_ptr, tile + tl.num_programs(0), tiles_h, tiles_w, num_samples, geometry,
            R, C, STRIDE_H, STRIDE_W, OUTPUTS, LEAD, E_ROW, V, VC, PITCH,
            BLOCK_N, BLOCK_H, BLOCK_W, BLOCK_E,
        )  # fmt: skip
        w = tile % tiles_w * WIDTH
        h = tile // tiles_w % tiles_h * BLOCK_H
        n = tile // (tiles_w * tiles_h) * BLOCK_N
        acc = tl.zeros((OUTPUTS * BLOCK_K, GROUPS), tl.float32)
        for step in tl.static_range((R * E_ROW + BLOCK_E - 1) // BLOCK_E):
            acc = tl.dot(weights[step], windows[step].T, acc, input_precision="tf32")
        windows = ahead
        acc = acc.reshape(OUTPUTS, BLOCK_K, GROUPS).permute(1, 2, 0)
        acc = acc.reshape(BLOCK_K, GROUPS * OUTPUTS)
        if Y_IS_BOX:
            store_sums(
                acc, bias_ptr, mask, mask_strides, y, codes_ptr, moments_ptr,
                n, h, w, k, num_samples, height, width, OUT_C, OUT_C,
                HAS_BIAS, HAS_MASK, BITS, RELU, POOL, OUT_PRECISION,
                BLOCK_N, BLOCK_H, WIDTH, BLOCK_K, PARTS,
            )  # fmt: skip
        else:
            _store_by_pointers(
                acc, bias_ptr, mask, y, codes_ptr,
                n, h, w, k, num_samples, height, width, OUT_C, Y_PITCH, MASK_PITCH,
                HAS_BIAS, HAS_MASK, BITS, RELU, POOL, OUT_PRECISION,
                BLOCK_N, BLOCK_H, WIDTH, BLOCK_K,
            )  # fmt: skip

"""Gradient of max pooling of NHWC maps, by argmax codes or by finding each maximum again.

The gradient gathers: each of its elements is one sum in a fixed order.
"""

from math import gcd, prod
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..codec.argmax import channels_a_byte, unpack
from ..language import map_tiles
from ..language.channel_ranges import pitch_of
from ..language.map_tiles import LOOP_SIZES, Pair, aligned, launch, sides, tile_place
from ..language.rounding import stored_reference
from .max import extent_of, first_places, pool_of, rows_a_program, rule_of
from .window_grad import gathered, gathered_exactly, store_grad, window_row
from .window_max import is_unclear, nothing_unclear

# Rows of cells of a program whose windows overlap. Windows 3x3 of stride 2 with codes over
# 1024x55x55x64 in bfloat16 run at 83% of a copy's speed, with 7 rows at 80% (H200, 2026-11-21).
ROWS: Final = 4
SHARED_ROWS: Final = 7  # ROWS of a program that finds maxima of rows once for two windows
# Elements and channels of a tile by the rules for finite maxima. 256 float32 elements of a warp
# would spill.
WINDOWS_TILE: Final = {"pairs": (256, 64), "finite": (128, 64)}


@triton.jit
def _grad_rows(
    source_ptr, dy_ptr, dx_ptr, n, start, stop, cell_w, c,
    height, width, out_height, out_width, x_pitch, y_pitch, channels, tiles_c, source_pitch,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    WINDOWS_H: tl.constexpr, WINDOWS_W: tl.constexpr, A_BYTE: tl.constexpr,
    SHARED: tl.constexpr, PRECISION: tl.constexpr, RULE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Compute the rows [start, stop) of cells. Return NaN where RULE does not know a tap.

    SHARED: the last row of a window is the first of the next, whose maxima are found once.
    """
    unclear, kept, rows = nothing_unclear(cell_w, c, RULE), (), ()
    for back in tl.static_range(1, WINDOWS_H):
        upper, upper_rows, unclear = window_row(
            source_ptr, dy_ptr, n, start - (WINDOWS_H - back), cell_w, c, rows, unclear,
            height, width, out_height, out_width, source_pitch, y_pitch, channels, tiles_c,
            KERNEL_H, KERNEL_W, STRIDE_H, STRIDE_W, PADDING_H, PADDING_W, DILATION_H, DILATION_W,
            WINDOWS_W, A_BYTE, RULE,
        )  # fmt: skip
        kept += upper
        if SHARED:
            rows = upper_rows
    for cell_h in range(start, stop):
        windows, last_rows, unclear = window_row(
            source_ptr, dy_ptr, n, cell_h, cell_w, c, rows, unclear,
            height, width, out_height, out_width, source_pitch, y_pitch, channels, tiles_c,
            KERNEL_H, KERNEL_W, STRIDE_H, STRIDE_W, PADDING_H, PADDING_W, DILATION_H, DILATION_W,
            WINDOWS_W, A_BYTE, RULE,
        )  # fmt: skip
        windows = kept + windows
        for place in tl.static_range(STRIDE_H * STRIDE_W):
            dx = gathered(
                windows, place // STRIDE_W, place % STRIDE_W, KERNEL_H, KERNEL_W,
                STRIDE_H, STRIDE_W, DILATION_H, DILATION_W, WINDOWS_H, WINDOWS_W, A_BYTE,
            )  # fmt: skip
            h = cell_h * STRIDE_H - PADDING_H + place // STRIDE_W
            w = cell_w * STRIDE_W - PADDING_W + place % STRIDE_W
            store_grad(dx_ptr, dx, n, h, w, c, height, width, channels, x_pitch, PRECISION)
        kept = windows[2 * WINDOWS_W :]
        if SHARED:
            rows = last_rows
    return unclear


@triton.jit(do_not_specialize=[*LOOP_SIZES, "cells_h", "blocks_h", "block_h"])
def _max_pool2d_grad_kernel(
    source_ptr, dy_ptr, dx_ptr,
    height, width, out_height, out_width, x_pitch, y_pitch, channels, tiles_w, tiles_c,
    source_pitch, cells_h, blocks_h, block_h,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    WINDOWS_H: tl.constexpr, WINDOWS_W: tl.constexpr, A_BYTE: tl.constexpr, SHARED: tl.constexpr,
    RULE: tl.constexpr, PRECISION: tl.constexpr, ALIGN: tl.constexpr,
    BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Cells of STRIDE_H x STRIDE_W elements tile the padded map. Window i starts where cell i does.

    A cell gathers from the WINDOWS_H x WINDOWS_W windows that may reach it. A program computes
    `block_h` rows of cells and keeps the windows that reach the next row in registers. Where a rule
    for finite maxima meets others, the program starts again by the exact rule.
    """
    x_pitch, y_pitch, channels = aligned(x_pitch, y_pitch, channels, ALIGN)
    if A_BYTE == 0:
        source_pitch = source_pitch // ALIGN * ALIGN
    n, block, cell_w, c = tile_place(tiles_w, tiles_c, blocks_h, BLOCK_W, BLOCK_C)
    start = block * block_h
    stop = tl.minimum(start + block_h, cells_h)
    unclear = _grad_rows(
        source_ptr, dy_ptr, dx_ptr, n, start, stop, cell_w, c,
        height, width, out_height, out_width, x_pitch, y_pitch, channels, tiles_c, source_pitch,
        KERNEL_H, KERNEL_W, STRIDE_H, STRIDE_W, PADDING_H, PADDING_W, DILATION_H, DILATION_W,
        WINDOWS_H, WINDOWS_W, A_BYTE, SHARED, PRECISION, RULE,
    )  # fmt: skip
    if RULE != "exact":
        met = is_unclear(unclear)
        if met:
            for place in range(start * STRIDE_H * STRIDE_W, stop * STRIDE_H * STRIDE_W):
                h = place // STRIDE_W - PADDING_H
                w = cell_w * STRIDE_W + place % STRIDE_W - PADDING_W
                dx = gathered_exactly(
                    source_ptr, dy_ptr, n, h, w, c,
                    height, width, out_height, out_width, y_pitch, channels, source_pitch,
                    KERNEL_H, KERNEL_W, STRIDE_H, STRIDE_W, PADDING_H, PADDING_W,
                    DILATION_H, DILATION_W, WINDOWS_H, WINDOWS_W,
                )  # fmt: skip
                store_grad(dx_ptr, dx, n, h, w, c, height, width, channels, x_pitch, PRECISION)


@triton.jit(do_not_specialize=LOOP_SIZES)
def _max_pool2d_grad_loop_kernel(
    x_ptr, dy_ptr, dx_ptr, height, width, out_height, out_width, x_pitch, y_pitch,
    channels, tiles_w, tiles_c, source_pitch,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    WINDOWS_H: tl.constexpr, WINDOWS_W: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A program computes elements of one row."""
    n, h, w, c = tile_place(tiles_w, tiles_c, height, BLOCK_W, BLOCK_C)
    dx = gathered_exactly(
        x_ptr, dy_ptr, n, h, w, c,
        height, width, out_height, out_width, y_pitch, channels, source_pitch, KERNEL_H, KERNEL_W,
        STRIDE_H, STRIDE_W, PADDING_H, PADDING_W, DILATION_H, DILATION_W, WINDOWS_H, WINDOWS_W,
    )  # fmt: skip
    store_grad(dx_ptr, dx, n, h, w, c, height, width, channels, x_pitch, PRECISION)


def _pool_grad(
    source: Tensor, dy: Tensor, dx: Tensor, a_byte: int, precision: str, **window: Pair
) -> None:
    kernel, stride, padding = window["kernel"], window["stride"], window["padding"]
    samples, height, width, channels = dx.shape
    operands = (source, dy, dx, *sides(dx, dy))
    extent = extent_of(kernel, window["dilation"])
    windows = [triton.cdiv(*each) for each in zip(extent, stride, strict=True)]
    constants: dict[str, int | str] = {"WINDOWS_H": windows[0], "WINDOWS_W": windows[1]}
    constants |= map_tiles.by_side(**window) | {
        "source_pitch": pitch_of(source),
        "PRECISION": precision,
    }
    if prod(windows) > map_tiles.UNROLLED_TAPS:
        rows = samples * height
        launch(_max_pool2d_grad_loop_kernel, operands, rows, width, channels, **constants)
        return
    cells_h = triton.cdiv(height + padding[0], stride[0])
    cells_w = triton.cdiv(width + padding[1], stride[1])
    shared = a_byte == 0 and extent[0] - 1 == stride[0]
    most = SHARED_ROWS if shared else ROWS if windows[0] > 1 else 1
    block_h = rows_a_program(cells_h, samples, most)
    blocks_h = triton.cdiv(cells_h, block_h)
    overlap = prod(windows) > 1
    rule = rule_of(source, kernel, shared=shared) if overlap and a_byte == 0 else "exact"
    tile = map_tiles.OVERLAP_TILE if overlap else map_tiles.TILE
    if rule != "exact":
        tile = WINDOWS_TILE[rule]
    align = map_tiles.alignment(dx, dy)
    if a_byte == 0:
        align = gcd(align, pitch_of(source))
    launch(
        _max_pool2d_grad_kernel, operands, samples * blocks_h, cells_w, channels,
        tile, **constants, cells_h=cells_h, blocks_h=blocks_h, block_h=block_h, A_BYTE=a_byte,
        SHARED=shared, RULE=rule, ALIGN=align,
    )  # fmt: skip


def max_pool2d_grad(
    x: Tensor, dy: Tensor, dx: Tensor, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair,
    precision: str = "ieee",
) -> None:  # fmt: skip
    """The gradient dx [N, H, W, C] of `max_pool2d` from x [N, H, W, C] and dy [N, OH, OW, C].

    Of equal values of a window the first gets the gradient. Maps may be channel ranges. dx is
    rounded as products of `precision` read it.
    """
    window = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    _pool_grad(x, dy, dx, 0, precision, **window)


def max_unpool2d(
    dy: Tensor, codes: Tensor, dx: Tensor, *, kernel: Pair = (2, 2), stride: Pair = (2, 2),
    padding: Pair = (0, 0), dilation: Pair = (1, 1), precision: str = "ieee",
) -> None:  # fmt: skip
    """`max_pool2d_grad`, to the same bits, from the codes of `max_pool2d_codes` instead of x."""
    window = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    _pool_grad(codes, dy, dx, channels_a_byte(kernel), precision, **window)


def _scatter(dy: Tensor, places: Tensor, dx: Tensor, precision: str) -> None:
    """Add each dy to the element of dx at its index [N, C, OH, OW] in the map, and round.

    Indices outside the map are clamped. Only codes of arbitrary bytes give such indices; every
    launch runs once on such bytes before a step.
    """
    places = places.clamp(0, dx.shape[1] * dx.shape[2] - 1)
    total = torch.zeros(dx.shape[0], dx.shape[3], dx.shape[1] * dx.shape[2], device=dx.device)
    total.scatter_add_(2, places.flatten(2), map_tiles.nchw(dy).flatten(2))
    rounded = stored_reference(total, dx.dtype, precision)
    dx.copy_(rounded.unflatten(2, dx.shape[1:3]).permute(0, 2, 3, 1))


def max_pool2d_grad_reference(
    x: Tensor, dy: Tensor, dx: Tensor, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair,
    precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `max_pool2d_grad` in torch."""
    window = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    _scatter(dy, pool_of(x, dy, **window)[1], dx, precision)


def max_unpool2d_reference(
    dy: Tensor, codes: Tensor, dx: Tensor, *, kernel: Pair = (2, 2), stride: Pair = (2, 2),
    padding: Pair = (0, 0), dilation: Pair = (1, 1), precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `max_unpool2d` in torch."""
    tap = unpack(codes, channels_a_byte(kernel)).permute(0, 3, 1, 2)
    first_h, first_w = first_places(dy.shape[1:3], dy.device, stride, padding)
    h = first_h + tap // kernel[1] * dilation[0]
    w = first_w + tap % kernel[1] * dilation[1]
    _scatter(dy, h * dx.shape[2] + w, dx, precision)

"""Gradient of max pooling of NHWC maps, by argmax codes or by finding each maximum again.

The gradient gathers: each of its elements is one sum in a fixed order.
"""

from math import prod
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..codec.argmax import bytes_of_row, channels_a_byte, is_code, unpack
from ..language import map_tiles
from ..language.channel_ranges import pitch_of
from ..language.map_tiles import LOOP_SIZES, Pair, aligned, launch, row, sides, tile_place
from ..language.rounding import stored, stored_reference
from .max import extent_of, first_places, pool_of, rows_a_program
from .window_max import row_max, window_max

# Rows of cells of a program whose windows overlap. Windows 3x3 of stride 2 with codes over
# 1024x55x55x64 in bfloat16 run at 83% of a copy's speed, with 7 rows at 80% (H200, 2026-11-21).
ROWS: Final = 4


@triton.jit
def _argmax(
    x_ptr, n, h, w, c, height, width, channels, x_pitch,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
):  # fmt: skip
    """Taps of the maxima of windows (h, w)."""
    first_h, first_w = h * STRIDE_H - PADDING_H, w * STRIDE_W - PADDING_W
    largest, column = row_max(
        x_ptr, n, first_h, first_w, c, height, width, channels, x_pitch, KERNEL_W, DILATION_W, True
    )
    _, tap_of_max, _, _ = window_max(
        largest, column, x_ptr, n, first_h, first_w, c, height, width, channels, x_pitch,
        KERNEL_H, KERNEL_W, DILATION_H, DILATION_W, True,
    )  # fmt: skip
    return tap_of_max


@triton.jit
def _load_grad(dy_ptr, n, h, w, c, out_height, out_width, channels, pitch):
    mask = (h >= 0) & (h < out_height) & (w >= 0) & (w < out_width) & (c < channels)
    ptrs = row(dy_ptr, n, h, out_height, out_width, pitch) + (w * pitch + c)
    return tl.load(ptrs, mask=mask, other=0.0)


@triton.jit
def _load_codes(
    codes_ptr, n, h, w, out_height, out_width, channels, tiles_c,
    A_BYTE: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    num_bytes = channels // A_BYTE
    place = bytes_of_row(tiles_c, BLOCK_C, A_BYTE)
    mask = (h >= 0) & (h < out_height) & (w >= 0) & (w < out_width) & (place < num_bytes)
    ptrs = row(codes_ptr, n, h, out_height, out_width, num_bytes) + (w * num_bytes + place)
    return tl.load(ptrs, mask=mask, other=0)


@triton.jit
def _window_row(
    source_ptr, dy_ptr, n, h, cell_w, c,
    height, width, out_height, out_width, source_pitch, y_pitch, channels, tiles_c,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    WINDOWS_W: tl.constexpr, A_BYTE: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """For each window of row h that may reach the cells: its dy, then its codes or its taps."""
    windows = ()
    for i in tl.static_range(WINDOWS_W):
        w = cell_w - (WINDOWS_W - 1 - i)
        windows += (_load_grad(dy_ptr, n, h, w, c, out_height, out_width, channels, y_pitch),)
        if A_BYTE > 0:
            windows += (
                _load_codes(
                    source_ptr, n, h, w, out_height, out_width, channels, tiles_c,
                    A_BYTE, c.shape[1],
                ),
            )  # fmt: skip
        else:
            windows += (
                _argmax(
                    source_ptr, n, h, w, c, height, width, channels, source_pitch,
                    KERNEL_H, KERNEL_W, STRIDE_H, STRIDE_W, PADDING_H, PADDING_W,
                    DILATION_H, DILATION_W,
                ),
            )  # fmt: skip
    return windows


@triton.jit
def _with_window(
    dx, dy, source, OFFSET_H: tl.constexpr, OFFSET_W: tl.constexpr,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, A_BYTE: tl.constexpr,
):  # fmt: skip
    """dx plus the gradient that a window gives to its elements at (OFFSET_H, OFFSET_W)."""
    TAP_H: tl.constexpr = OFFSET_H // DILATION_H
    TAP_W: tl.constexpr = OFFSET_W // DILATION_W
    ON_TAP: tl.constexpr = TAP_H * DILATION_H == OFFSET_H and TAP_W * DILATION_W == OFFSET_W
    if ON_TAP and TAP_H < KERNEL_H and TAP_W < KERNEL_W:
        if A_BYTE > 0:
            is_max = is_code(source, TAP_H * KERNEL_W + TAP_W, A_BYTE)
        else:
            is_max = source == TAP_H * KERNEL_W + TAP_W
        dx = tl.where(is_max, dx + dy.to(tl.float32), dx)
    return dx


@triton.jit
def _gathered(
    windows, PLACE_H: tl.constexpr, PLACE_W: tl.constexpr,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    WINDOWS_H: tl.constexpr, WINDOWS_W: tl.constexpr, A_BYTE: tl.constexpr,
):  # fmt: skip
    """The gradient of the elements at (PLACE_H, PLACE_W) of cells; the first window comes first."""
    dx = tl.zeros(windows[0].shape, tl.float32)
    for i in tl.static_range(WINDOWS_H * WINDOWS_W):
        dx = _with_window(
            dx, windows[2 * i], windows[2 * i + 1],
            PLACE_H + (WINDOWS_H - 1 - i // WINDOWS_W) * STRIDE_H,
            PLACE_W + (WINDOWS_W - 1 - i % WINDOWS_W) * STRIDE_W,
            KERNEL_H, KERNEL_W, DILATION_H, DILATION_W, A_BYTE,
        )  # fmt: skip
    return dx


@triton.jit
def _store_grad(dx_ptr, dx, n, h, w, c, height, width, channels, pitch, PRECISION: tl.constexpr):
    mask = (h >= 0) & (h < height) & (w >= 0) & (w < width) & (c < channels)
    ptrs = row(dx_ptr, n, h, height, width, pitch) + (w * pitch + c)
    tl.store(ptrs, stored(dx, dx_ptr.dtype.element_ty, PRECISION), mask=mask)


@triton.jit(do_not_specialize=[*LOOP_SIZES, "cells_h", "blocks_h", "block_h"])
def _max_pool2d_grad_kernel(
    source_ptr, dy_ptr, dx_ptr,
    height, width, out_height, out_width, x_pitch, y_pitch, channels, tiles_w, tiles_c,
    source_pitch, cells_h, blocks_h, block_h,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    WINDOWS_H: tl.constexpr, WINDOWS_W: tl.constexpr, A_BYTE: tl.constexpr,
    PRECISION: tl.constexpr, ALIGN: tl.constexpr,
    BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Cells of STRIDE_H x STRIDE_W elements tile the padded map. Window i starts where cell i does.

    A cell gathers from the WINDOWS_H x WINDOWS_W windows that may reach it. A program computes
    `block_h` rows of cells and keeps the windows that reach the next row in registers.
    """
    x_pitch, y_pitch, channels = aligned(x_pitch, y_pitch, channels, ALIGN)
    n, block, cell_w, c = tile_place(tiles_w, tiles_c, blocks_h, BLOCK_W, BLOCK_C)
    start = block * block_h
    kept = ()
    for back in tl.static_range(1, WINDOWS_H):
        kept += _window_row(
            source_ptr, dy_ptr, n, start - (WINDOWS_H - back), cell_w, c,
            height, width, out_height, out_width, source_pitch, y_pitch, channels, tiles_c,
            KERNEL_H, KERNEL_W, STRIDE_H, STRIDE_W, PADDING_H, PADDING_W, DILATION_H, DILATION_W,
            WINDOWS_W, A_BYTE,
        )  # fmt: skip
    for cell_h in range(start, tl.minimum(start + block_h, cells_h)):
        windows = kept + _window_row(
            source_ptr, dy_ptr, n, cell_h, cell_w, c,
            height, width, out_height, out_width, source_pitch, y_pitch, channels, tiles_c,
            KERNEL_H, KERNEL_W, STRIDE_H, STRIDE_W, PADDING_H, PADDING_W, DILATION_H, DILATION_W,
            WINDOWS_W, A_BYTE,
        )  # fmt: skip
        for place in tl.static_range(STRIDE_H * STRIDE_W):
            dx = _gathered(
                windows, place // STRIDE_W, place % STRIDE_W, KERNEL_H, KERNEL_W,
                STRIDE_H, STRIDE_W, DILATION_H, DILATION_W, WINDOWS_H, WINDOWS_W, A_BYTE,
            )  # fmt: skip
            h = cell_h * STRIDE_H - PADDING_H + place // STRIDE_W
            w = cell_w * STRIDE_W - PADDING_W + place % STRIDE_W
            _store_grad(dx_ptr, dx, n, h, w, c, height, width, channels, x_pitch, PRECISION)
        kept = windows[2 * WINDOWS_W :]


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
    """An element gathers from any number of windows, from the first on."""
    n, h, w, c = tile_place(tiles_w, tiles_c, height, BLOCK_W, BLOCK_C)
    dx = tl.zeros((BLOCK_W, BLOCK_C), tl.float32)
    for window in range(WINDOWS_H * WINDOWS_W):
        out_h = (h + PADDING_H) // STRIDE_H - (WINDOWS_H - 1 - window // WINDOWS_W)
        out_w = (w + PADDING_W) // STRIDE_W - (WINDOWS_W - 1 - window % WINDOWS_W)
        dy = _load_grad(dy_ptr, n, out_h, out_w, c, out_height, out_width, channels, y_pitch)
        tap_of_max = _argmax(
            x_ptr, n, out_h, out_w, c, height, width, channels, source_pitch, KERNEL_H, KERNEL_W,
            STRIDE_H, STRIDE_W, PADDING_H, PADDING_W, DILATION_H, DILATION_W,
        )  # fmt: skip
        is_max = h == out_h * STRIDE_H - PADDING_H + tap_of_max // KERNEL_W * DILATION_H
        is_max &= w == out_w * STRIDE_W - PADDING_W + tap_of_max % KERNEL_W * DILATION_W
        dx += tl.where(is_max, dy.to(tl.float32), 0.0)
    _store_grad(dx_ptr, dx, n, h, w, c, height, width, channels, x_pitch, PRECISION)


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
    block_h = rows_a_program(cells_h, samples, ROWS if windows[0] > 1 else 1)
    blocks_h = triton.cdiv(cells_h, block_h)
    launch(
        _max_pool2d_grad_kernel, operands, samples * blocks_h, cells_w, channels,
        map_tiles.OVERLAP_TILE if prod(windows) > 1 else map_tiles.TILE, **constants,
        cells_h=cells_h, blocks_h=blocks_h, block_h=block_h, A_BYTE=a_byte,
        ALIGN=map_tiles.alignment(dx, dy),
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

"""Average pooling and adaptive average pooling of NHWC maps, with their gradients.

Every gradient gathers: each of its elements is one sum in a fixed order. Outputs are rounded as
products of `precision` read them. Maps may be channel ranges.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from ..language import map_tiles
from ..language.map_tiles import (
    LOOP_SIZES,
    Pair,
    aligned,
    alignment,
    launch,
    row,
    sides,
    tile_place,
)
from ..language.rounding import stored, stored_reference
from .global_avg import global_avg, global_avg_grad


@triton.jit
def _divisor(
    h, w, height, width,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    COUNT_PADDING: tl.constexpr, DIVISOR: tl.constexpr,
):  # fmt: skip
    """The divisor of the window that starts at (h, w), float32: DIVISOR, or else its size.

    With COUNT_PADDING a window's size counts the elements in the padded map, else in the map.
    """
    if DIVISOR != 0:
        size = h * 0 + w * 0 + DIVISOR
    elif COUNT_PADDING:
        size_h = tl.minimum(h + KERNEL_H, height + PADDING_H) - h
        size = size_h * (tl.minimum(w + KERNEL_W, width + PADDING_W) - w)
    else:
        size_h = tl.minimum(h + KERNEL_H, height) - tl.maximum(h, 0)
        size = size_h * (tl.minimum(w + KERNEL_W, width) - tl.maximum(w, 0))
    return size.to(tl.float32)


@triton.jit(do_not_specialize=LOOP_SIZES)
def _avg_pool2d_kernel(
    x_ptr, y_ptr, height, width, out_height, out_width, x_pitch, y_pitch,
    channels, tiles_w, tiles_c,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    COUNT_PADDING: tl.constexpr, DIVISOR: tl.constexpr,
    UNROLL: tl.constexpr, PRECISION: tl.constexpr, ALIGN: tl.constexpr,
    BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    x_pitch, y_pitch, channels = aligned(x_pitch, y_pitch, channels, ALIGN)
    n, out_h, out_w, c = tile_place(tiles_w, tiles_c, out_height, BLOCK_W, BLOCK_C)
    first_h, first_w = out_h * STRIDE_H - PADDING_H, out_w * STRIDE_W - PADDING_W
    total = tl.zeros((BLOCK_W, BLOCK_C), tl.float32)
    for tap in tl.range(0, KERNEL_H * KERNEL_W, loop_unroll_factor=UNROLL):
        h, w = first_h + tap // KERNEL_W, first_w + tap % KERNEL_W
        mask = (h >= 0) & (h < height) & (w >= 0) & (w < width) & (c < channels)
        ptrs = row(x_ptr, n, h, height, width, x_pitch) + (w * x_pitch + c)
        total += tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
    size = _divisor(
        first_h, first_w, height, width,
        KERNEL_H, KERNEL_W, PADDING_H, PADDING_W, COUNT_PADDING, DIVISOR,
    )  # fmt: skip
    ptrs = row(y_ptr, n, out_h, out_height, out_width, y_pitch) + (out_w * y_pitch + c)
    mask = (out_w < out_width) & (c < channels)
    inside = (first_h < height) & (first_w < width)
    y = tl.where(inside, total / size, 0.0)
    tl.store(ptrs, stored(y, y_ptr.dtype.element_ty, PRECISION), mask=mask)


@triton.jit(do_not_specialize=LOOP_SIZES)
def _avg_pool2d_grad_kernel(
    dy_ptr, dx_ptr, height, width, out_height, out_width, x_pitch, y_pitch,
    channels, tiles_w, tiles_c,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    COUNT_PADDING: tl.constexpr, DIVISOR: tl.constexpr,
    WINDOWS_H: tl.constexpr, WINDOWS_W: tl.constexpr,
    UNROLL: tl.constexpr, PRECISION: tl.constexpr, ALIGN: tl.constexpr,
    BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    x_pitch, y_pitch, channels = aligned(x_pitch, y_pitch, channels, ALIGN)
    n, h, w, c = tile_place(tiles_w, tiles_c, height, BLOCK_W, BLOCK_C)
    last_h, last_w = (h + PADDING_H) // STRIDE_H, (w + PADDING_W) // STRIDE_W
    dx = tl.zeros((BLOCK_W, BLOCK_C), tl.float32)
    for window in tl.range(0, WINDOWS_H * WINDOWS_W, loop_unroll_factor=UNROLL):
        out_h = last_h - (WINDOWS_H - 1 - window // WINDOWS_W)
        out_w = last_w - (WINDOWS_W - 1 - window % WINDOWS_W)
        first_h, first_w = out_h * STRIDE_H - PADDING_H, out_w * STRIDE_W - PADDING_W
        in_window = (out_h >= 0) & (out_h < out_height) & (h < first_h + KERNEL_H)
        in_window = in_window & (out_w >= 0) & (out_w < out_width) & (w < first_w + KERNEL_W)
        ptrs = row(dy_ptr, n, out_h, out_height, out_width, y_pitch) + (out_w * y_pitch + c)
        dy = tl.load(ptrs, mask=in_window & (c < channels), other=0.0).to(tl.float32)
        size = _divisor(
            first_h, first_w, height, width,
            KERNEL_H, KERNEL_W, PADDING_H, PADDING_W, COUNT_PADDING, DIVISOR,
        )  # fmt: skip
        share = tl.where(in_window, 1.0 / size, 0.0)  # [BLOCK_W, 1]
        dx += dy * share
    ptrs = row(dx_ptr, n, h, height, width, x_pitch) + (w * x_pitch + c)
    mask = (w < width) & (c < channels)
    tl.store(ptrs, stored(dx, dx_ptr.dtype.element_ty, PRECISION), mask=mask)


@triton.jit(do_not_specialize=[*LOOP_SIZES, "cells_h"])
def _avg_pool2d_spread_kernel(
    dy_ptr, dx_ptr, height, width, out_height, out_width, x_pitch, y_pitch,
    channels, tiles_w, tiles_c, cells_h,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    COUNT_PADDING: tl.constexpr, DIVISOR: tl.constexpr,
    UNROLL: tl.constexpr, PRECISION: tl.constexpr, ALIGN: tl.constexpr,
    BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The gradient of windows that do not overlap.

    Cells of STRIDE_H x STRIDE_W elements tile the padded map. Window i lies in cell i.
    """
    x_pitch, y_pitch, channels = aligned(x_pitch, y_pitch, channels, ALIGN)
    n, cell_h, cell_w, c = tile_place(tiles_w, tiles_c, cells_h, BLOCK_W, BLOCK_C)
    first_h, first_w = cell_h * STRIDE_H - PADDING_H, cell_w * STRIDE_W - PADDING_W
    is_window = (cell_h < out_height) & (cell_w < out_width)
    ptrs = row(dy_ptr, n, cell_h, out_height, out_width, y_pitch) + (cell_w * y_pitch + c)
    dy = tl.load(ptrs, mask=is_window & (c < channels), other=0.0).to(tl.float32)
    size = _divisor(
        first_h, first_w, height, width,
        KERNEL_H, KERNEL_W, PADDING_H, PADDING_W, COUNT_PADDING, DIVISOR,
    )  # fmt: skip
    dx = stored(tl.where(is_window, dy / size, 0.0), dx_ptr.dtype.element_ty, PRECISION)
    for place in tl.range(0, STRIDE_H * STRIDE_W, loop_unroll_factor=UNROLL):
        in_window = (place // STRIDE_W < KERNEL_H) & (place % STRIDE_W < KERNEL_W)
        h, w = first_h + place // STRIDE_W, first_w + place % STRIDE_W
        mask = (h >= 0) & (h < height) & (w >= 0) & (w < width) & (c < channels)
        ptrs = row(dx_ptr, n, h, height, width, x_pitch) + (w * x_pitch + c)
        tl.store(ptrs, tl.where(in_window, dx, 0.0), mask=mask)


@triton.jit
def _adaptive_start(i, size, out_size):
    return i * size // out_size


@triton.jit
def _adaptive_stop(i, size, out_size):
    return ((i + 1) * size + out_size - 1) // out_size


@triton.jit(do_not_specialize=[*LOOP_SIZES, "most_w"])
def _adaptive_avg_pool2d_kernel(
    x_ptr, y_ptr, height, width, out_height, out_width, x_pitch, y_pitch,
    channels, tiles_w, tiles_c, most_w,
    PRECISION: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """`most_w` is the number of columns of the widest window."""
    n, out_h, out_w, c = tile_place(tiles_w, tiles_c, out_height, BLOCK_W, BLOCK_C)
    start_h = _adaptive_start(out_h, height, out_height)
    stop_h = _adaptive_stop(out_h, height, out_height)
    start_w = _adaptive_start(out_w, width, out_width)
    stop_w = tl.minimum(_adaptive_stop(out_w, width, out_width), width)
    total = tl.zeros((BLOCK_W, BLOCK_C), tl.float32)
    for h in range(start_h, stop_h):
        x_row = row(x_ptr, n, h, height, width, x_pitch)
        for step in range(most_w):
            w = start_w + step
            mask = (w < stop_w) & (c < channels)
            total += tl.load(x_row + (w * x_pitch + c), mask=mask, other=0.0).to(tl.float32)
    size = ((stop_h - start_h) * (stop_w - start_w)).to(tl.float32)
    ptrs = row(y_ptr, n, out_h, out_height, out_width, y_pitch) + (out_w * y_pitch + c)
    mask = (out_w < out_width) & (c < channels)
    tl.store(ptrs, stored(total / size, y_ptr.dtype.element_ty, PRECISION), mask=mask)


@triton.jit(do_not_specialize=[*LOOP_SIZES, "most_w"])
def _adaptive_avg_pool2d_grad_kernel(
    dy_ptr, dx_ptr, height, width, out_height, out_width, x_pitch, y_pitch,
    channels, tiles_w, tiles_c, most_w,
    PRECISION: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """`most_w` is the largest number of windows of a row that share an element.

    The windows that contain element i are window i of an adaptive pooling of y to the sides of x.
    """
    n, h, w, c = tile_place(tiles_w, tiles_c, height, BLOCK_W, BLOCK_C)
    first_w = _adaptive_start(w, out_width, width)
    end_w = tl.minimum(_adaptive_stop(w, out_width, width), out_width)
    dx = tl.zeros((BLOCK_W, BLOCK_C), tl.float32)
    first_h = _adaptive_start(h, out_height, height)
    for out_h in range(first_h, _adaptive_stop(h, out_height, height)):
        dy_row = row(dy_ptr, n, out_h, out_height, out_width, y_pitch)
        size_h = _adaptive_stop(out_h, height, out_height) - _adaptive_start(
            out_h, height, out_height
        )
        for step in range(most_w):
            out_w = first_w + step
            mask = (out_w < end_w) & (c < channels)
            dy = tl.load(dy_row + (out_w * y_pitch + c), mask=mask, other=0.0).to(tl.float32)
            size_w = _adaptive_stop(out_w, width, out_width)
            size_w -= _adaptive_start(out_w, width, out_width)
            dx += dy / (size_h * size_w).to(tl.float32)
    ptrs = row(dx_ptr, n, h, height, width, x_pitch) + (w * x_pitch + c)
    mask = (w < width) & (c < channels)
    tl.store(ptrs, stored(dx, dx_ptr.dtype.element_ty, PRECISION), mask=mask)


def _avg_constants(
    kernel: Pair, stride: Pair, padding: Pair, count_include_pad: bool, divisor_override: int | None
) -> dict[str, int]:
    divisors = {"COUNT_PADDING": count_include_pad, "DIVISOR": divisor_override or 0}
    return map_tiles.by_side(kernel=kernel, stride=stride, padding=padding) | divisors


def avg_pool2d(
    x: Tensor, y: Tensor, *, kernel: Pair, stride: Pair, padding: Pair,
    count_include_pad: bool, divisor_override: int | None, precision: str = "ieee",
) -> None:  # fmt: skip
    """y [N, OH, OW, C] = the mean of each window of x [N, H, W, C], with torch's divisors.

    Pairs are (h, w). Windows are clipped at the edges of the padded map. The sides of y may be
    those of torch's floor mode or ceil mode.
    """
    samples, out_height, out_width, channels = y.shape
    launch(
        _avg_pool2d_kernel, (x, y, *sides(x, y)), samples * out_height, out_width, channels,
        **_avg_constants(kernel, stride, padding, count_include_pad, divisor_override),
        UNROLL=map_tiles.unroll(*kernel), PRECISION=precision, ALIGN=alignment(x, y),
    )  # fmt: skip


def avg_pool2d_grad(
    dy: Tensor, dx: Tensor, *, kernel: Pair, stride: Pair, padding: Pair,
    count_include_pad: bool, divisor_override: int | None, precision: str = "ieee",
) -> None:  # fmt: skip
    """The gradient dx [N, H, W, C] of `avg_pool2d` from dy [N, OH, OW, C]."""
    samples, height, width, channels = dx.shape
    constants = _avg_constants(kernel, stride, padding, count_include_pad, divisor_override)
    constants["ALIGN"] = alignment(dx, dy)
    operands = (dy, dx, *sides(dx, dy))
    windows = (triton.cdiv(kernel[0], stride[0]), triton.cdiv(kernel[1], stride[1]))
    if windows == (1, 1):
        cells_h = triton.cdiv(height + padding[0], stride[0])
        cells_w = triton.cdiv(width + padding[1], stride[1])
        launch(
            _avg_pool2d_spread_kernel, operands, samples * cells_h, cells_w, channels,
            **constants, cells_h=cells_h, UNROLL=map_tiles.unroll(*stride), PRECISION=precision,
        )  # fmt: skip
        return
    launch(
        _avg_pool2d_grad_kernel, operands, samples * height, width, channels, **constants,
        WINDOWS_H=windows[0], WINDOWS_W=windows[1], UNROLL=map_tiles.unroll(*windows),
        PRECISION=precision,
    )  # fmt: skip


def adaptive_avg_pool2d(x: Tensor, y: Tensor, *, precision: str = "ieee") -> None:
    """y [N, OH, OW, C] = the mean of each of torch's adaptive windows of x [N, H, W, C]."""
    if y.shape[1:3] == (1, 1):
        global_avg(x, y, precision)
        return
    if (window := _even_window(x, y)) is not None:
        avg_pool2d(x, y, **window, precision=precision)
        return
    _launch_adaptive(_adaptive_avg_pool2d_kernel, (x, y, *sides(x, y)), x, y, precision)


def adaptive_avg_pool2d_grad(dy: Tensor, dx: Tensor, *, precision: str = "ieee") -> None:
    """The gradient dx [N, H, W, C] of `adaptive_avg_pool2d` from dy [N, OH, OW, C]."""
    if dy.shape[1:3] == (1, 1):
        global_avg_grad(dy, dx, precision)
        return
    if (window := _even_window(dx, dy)) is not None:
        avg_pool2d_grad(dy, dx, **window, precision=precision)
        return
    _launch_adaptive(_adaptive_avg_pool2d_grad_kernel, (dy, dx, *sides(dx, dy)), dy, dx, precision)


def _launch_adaptive(
    kernel: triton.JITFunction, operands: tuple[Tensor | int, ...], source: Tensor, out: Tensor,
    precision: str,
) -> None:  # fmt: skip
    samples, height, width, channels = out.shape
    launch(
        kernel, operands, samples * height, width, channels,
        most_w=_most_columns(source.shape[2], width), PRECISION=precision,
    )  # fmt: skip


def _even_window(x: Tensor, y: Tensor) -> dict[str, Any] | None:
    """Settings of `avg_pool2d` where all adaptive windows have one size and none overlap."""
    if x.shape[1] % y.shape[1] or x.shape[2] % y.shape[2]:
        return None
    size = (x.shape[1] // y.shape[1], x.shape[2] // y.shape[2])
    settings = {"kernel": size, "stride": size, "padding": (0, 0)}
    return {**settings, "count_include_pad": True, "divisor_override": None}


def _most_columns(size: int, out_size: int) -> int:
    """Columns of the widest adaptive window."""
    return max(-(-(i + 1) * size // out_size) - i * size // out_size for i in range(out_size))


def avg_pool2d_reference(
    x: Tensor, y: Tensor, *, kernel: Pair, stride: Pair, padding: Pair,
    count_include_pad: bool, divisor_override: int | None, precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `avg_pool2d` in torch."""
    ceil = map_tiles.any_ceil(x, y, kernel, stride, padding)
    settings = (kernel, stride, padding, ceil, count_include_pad, divisor_override)
    _store_rounded(functional.avg_pool2d(map_tiles.nchw(x), *settings), y, precision)


def avg_pool2d_grad_reference(
    dy: Tensor, dx: Tensor, *, kernel: Pair, stride: Pair, padding: Pair,
    count_include_pad: bool, divisor_override: int | None, precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `avg_pool2d_grad` in torch."""
    ceil = map_tiles.any_ceil(dx, dy, kernel, stride, padding)
    settings = (kernel, stride, padding, ceil, count_include_pad, divisor_override)
    # Contiguous: on CUDA, torch 2.11 errs where windows are padded and maps are channels_last.
    like, given = map_tiles.nchw(dx).contiguous(), map_tiles.nchw(dy).contiguous()
    gradient = torch.ops.aten.avg_pool2d_backward(given, like, *settings)
    _store_rounded(gradient, dx, precision)


def adaptive_avg_pool2d_reference(x: Tensor, y: Tensor, *, precision: str = "ieee") -> None:
    """Computes `adaptive_avg_pool2d` in torch."""
    _store_rounded(functional.adaptive_avg_pool2d(map_tiles.nchw(x), y.shape[1:3]), y, precision)


def adaptive_avg_pool2d_grad_reference(dy: Tensor, dx: Tensor, *, precision: str = "ieee") -> None:
    """Computes `adaptive_avg_pool2d_grad` in torch."""
    like = torch.empty_like(map_tiles.nchw(dx))
    gradient = torch.ops.aten._adaptive_avg_pool2d_backward(map_tiles.nchw(dy), like)
    _store_rounded(gradient, dx, precision)


def _store_rounded(result: Tensor, out: Tensor, precision: str) -> None:
    """Round a map [N, C, H, W] into out [N, H, W, C]."""
    out.copy_(stored_reference(result, out.dtype, precision).permute(0, 2, 3, 1))

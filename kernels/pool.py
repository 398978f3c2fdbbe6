"""Max pooling, average pooling and adaptive average pooling of NHWC maps, with their gradients.

Nothing but the maps is read: max pooling's gradient finds the maximum of each window again, and
every gradient gathers, so that each element is one sum in a fixed order.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

Pair = tuple[int, int]

TILE: Final = 2048
TILE_CHANNELS: Final = 256
GRAD_TILE: Final = 4096
NUM_WARPS: Final = 4
UNROLLED_TAPS: Final = 16
LOOP_SIZES: Final = ["height", "width", "out_height", "out_width", "tiles_w", "tiles_c"]


@triton.jit
def _tile(tiles_w, tiles_c, height, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr):
    """Sample, row, columns [BLOCK_W, 1] and channels [1, BLOCK_C] of this program's tile."""
    pid = tl.program_id(0).to(tl.int64)
    c = (pid % tiles_c).to(tl.int32) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    w = (pid // tiles_c % tiles_w).to(tl.int32) * BLOCK_W + tl.arange(0, BLOCK_W)[:, None]
    row = pid // tiles_c // tiles_w
    return row // height, (row % height).to(tl.int32), w, c


@triton.jit
def _row(ptr, n, h, height, width, channels):
    """Pointer to row h of sample n; any h, also outside of the map."""
    return ptr + (n * height + h) * width * channels


@triton.jit
def _window_max(
    x_ptr, n, first_h, first_w, c, height, width, channels,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Largest value of each window, and the index of its tap: the first such, or the last NaN.

    Windows start at row `first_h` and columns `first_w`; where all is -inf, the first tap that lies
    in the map is taken.
    """
    skipped_h = tl.maximum((DILATION_H - 1 - first_h) // DILATION_H, 0)
    skipped_w = tl.maximum((DILATION_W - 1 - first_w) // DILATION_W, 0)
    tap_of_max = skipped_h * KERNEL_W + skipped_w + c * 0  # [BLOCK_W, BLOCK_C]
    largest = tl.full(tap_of_max.shape, float("-inf"), tl.float32)
    for tap in tl.range(0, KERNEL_H * KERNEL_W, loop_unroll_factor=UNROLL):
        h = first_h + tap // KERNEL_W * DILATION_H
        w = first_w + tap % KERNEL_W * DILATION_W
        mask = (h >= 0) & (h < height) & (w >= 0) & (w < width) & (c < channels)
        ptrs = _row(x_ptr, n, h, height, width, channels) + (w * channels + c)
        x = tl.load(ptrs, mask=mask, other=float("-inf")).to(tl.float32)
        replaces = (x > largest) | (x != x)
        largest = tl.where(replaces, x, largest)
        tap_of_max = tl.where(replaces, tap, tap_of_max)
    return largest, tap_of_max


@triton.jit(do_not_specialize=LOOP_SIZES)
def _max_pool2d_kernel(
    x_ptr, y_ptr, height, width, out_height, out_width, channels, tiles_w, tiles_c,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    UNROLL: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    n, h, w, c = _tile(tiles_w, tiles_c, out_height, BLOCK_W, BLOCK_C)
    largest, _ = _window_max(
        x_ptr, n, h * STRIDE_H - PADDING_H, w * STRIDE_W - PADDING_W, c, height, width, channels,
        KERNEL_H, KERNEL_W, DILATION_H, DILATION_W, UNROLL,
    )  # fmt: skip
    ptrs = _row(y_ptr, n, h, out_height, out_width, channels) + (w * channels + c)
    tl.store(ptrs, largest.to(y_ptr.dtype.element_ty), mask=(w < out_width) & (c < channels))


@triton.jit(do_not_specialize=[*LOOP_SIZES, "cells_h"])
def _max_pool2d_grad_kernel(
    x_ptr, dy_ptr, dx_ptr,
    height, width, out_height, out_width, channels, tiles_w, tiles_c, cells_h,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    WINDOWS_H: tl.constexpr, WINDOWS_W: tl.constexpr, CELL: tl.constexpr,
    UNROLL: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Cells of STRIDE_H x STRIDE_W elements tile the padded map; window i starts with cell i.

    A cell gathers from the WINDOWS_H x WINDOWS_W windows that may reach it, the earliest first.
    """
    n, cell_h, cell_w, c = _tile(tiles_w, tiles_c, cells_h, BLOCK_W, BLOCK_C)
    place = tl.arange(0, CELL)[:, None, None]  # [CELL, 1, 1]
    place_h, place_w = place // STRIDE_W, place % STRIDE_W
    dx = tl.zeros((CELL, BLOCK_W, BLOCK_C), tl.float32)
    for window in range(WINDOWS_H * WINDOWS_W):
        back_h = WINDOWS_H - 1 - window // WINDOWS_W
        back_w = WINDOWS_W - 1 - window % WINDOWS_W
        h, w = cell_h - back_h, cell_w - back_w
        mask = (h >= 0) & (h < out_height) & (w >= 0) & (w < out_width) & (c < channels)
        ptrs = _row(dy_ptr, n, h, out_height, out_width, channels) + (w * channels + c)
        dy = tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
        _, tap_of_max = _window_max(
            x_ptr, n, h * STRIDE_H - PADDING_H, w * STRIDE_W - PADDING_W, c,
            height, width, channels, KERNEL_H, KERNEL_W, DILATION_H, DILATION_W, UNROLL,
        )  # fmt: skip
        offset_h, offset_w = place_h + back_h * STRIDE_H, place_w + back_w * STRIDE_W
        is_tap = (offset_h % DILATION_H == 0) & (offset_w % DILATION_W == 0)
        is_tap &= (offset_h // DILATION_H < KERNEL_H) & (offset_w // DILATION_W < KERNEL_W)
        tap = offset_h // DILATION_H * KERNEL_W + offset_w // DILATION_W
        dx += tl.where(is_tap & (tap == tap_of_max[None]), dy[None], 0.0)
    h = cell_h * STRIDE_H - PADDING_H + place_h
    w = (cell_w * STRIDE_W - PADDING_W)[None] + place_w
    mask = (h >= 0) & (h < height) & (w >= 0) & (w < width) & (c < channels)[None]
    mask &= place < STRIDE_H * STRIDE_W
    ptrs = _row(dx_ptr, n, cell_h * STRIDE_H - PADDING_H, height, width, channels)
    ptrs += (place_h * width + w) * channels + c[None]
    tl.store(ptrs, dx.to(dx_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _divisor(
    h, w, height, width,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    COUNT_PADDING: tl.constexpr, DIVISOR: tl.constexpr,
):  # fmt: skip
    """What a window starting at (h, w) divides by: DIVISOR, or its size inside the (padded) map."""
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
    x_ptr, y_ptr, height, width, out_height, out_width, channels, tiles_w, tiles_c,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    COUNT_PADDING: tl.constexpr, DIVISOR: tl.constexpr,
    UNROLL: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    n, out_h, out_w, c = _tile(tiles_w, tiles_c, out_height, BLOCK_W, BLOCK_C)
    first_h, first_w = out_h * STRIDE_H - PADDING_H, out_w * STRIDE_W - PADDING_W
    total = tl.zeros((BLOCK_W, BLOCK_C), tl.float32)
    for tap in tl.range(0, KERNEL_H * KERNEL_W, loop_unroll_factor=UNROLL):
        h, w = first_h + tap // KERNEL_W, first_w + tap % KERNEL_W
        mask = (h >= 0) & (h < height) & (w >= 0) & (w < width) & (c < channels)
        ptrs = _row(x_ptr, n, h, height, width, channels) + (w * channels + c)
        total += tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
    size = _divisor(
        first_h, first_w, height, width,
        KERNEL_H, KERNEL_W, PADDING_H, PADDING_W, COUNT_PADDING, DIVISOR,
    )  # fmt: skip
    ptrs = _row(y_ptr, n, out_h, out_height, out_width, channels) + (out_w * channels + c)
    mask = (out_w < out_width) & (c < channels)
    inside = (first_h < height) & (first_w < width)
    y = tl.where(inside, total / size, 0.0)
    tl.store(ptrs, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=LOOP_SIZES)
def _avg_pool2d_grad_kernel(
    dy_ptr, dx_ptr, height, width, out_height, out_width, channels, tiles_w, tiles_c,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    COUNT_PADDING: tl.constexpr, DIVISOR: tl.constexpr,
    WINDOWS_H: tl.constexpr, WINDOWS_W: tl.constexpr,
    UNROLL: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    n, h, w, c = _tile(tiles_w, tiles_c, height, BLOCK_W, BLOCK_C)
    last_h, last_w = (h + PADDING_H) // STRIDE_H, (w + PADDING_W) // STRIDE_W
    dx = tl.zeros((BLOCK_W, BLOCK_C), tl.float32)
    for window in tl.range(0, WINDOWS_H * WINDOWS_W, loop_unroll_factor=UNROLL):
        out_h = last_h - (WINDOWS_H - 1 - window // WINDOWS_W)
        out_w = last_w - (WINDOWS_W - 1 - window % WINDOWS_W)
        first_h, first_w = out_h * STRIDE_H - PADDING_H, out_w * STRIDE_W - PADDING_W
        mask = (out_h >= 0) & (out_h < out_height) & (h < first_h + KERNEL_H)
        mask = mask & (out_w >= 0) & (out_w < out_width) & (w < first_w + KERNEL_W)
        mask = mask & (c < channels)
        ptrs = _row(dy_ptr, n, out_h, out_height, out_width, channels) + (out_w * channels + c)
        dy = tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
        size = _divisor(
            first_h, first_w, height, width,
            KERNEL_H, KERNEL_W, PADDING_H, PADDING_W, COUNT_PADDING, DIVISOR,
        )  # fmt: skip
        dx += tl.where(mask, dy / size, 0.0)
    ptrs = _row(dx_ptr, n, h, height, width, channels) + (w * channels + c)
    tl.store(ptrs, dx.to(dx_ptr.dtype.element_ty), mask=(w < width) & (c < channels))


@triton.jit
def _adaptive_start(i, size, out_size):
    return i * size // out_size


@triton.jit
def _adaptive_stop(i, size, out_size):
    return ((i + 1) * size + out_size - 1) // out_size


@triton.jit(do_not_specialize=[*LOOP_SIZES, "most_w"])
def _adaptive_avg_pool2d_kernel(
    x_ptr, y_ptr, height, width, out_height, out_width, channels, tiles_w, tiles_c, most_w,
    BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """`most_w`: columns of the widest window."""
    n, out_h, out_w, c = _tile(tiles_w, tiles_c, out_height, BLOCK_W, BLOCK_C)
    start_h = _adaptive_start(out_h, height, out_height)
    stop_h = _adaptive_stop(out_h, height, out_height)
    start_w = _adaptive_start(out_w, width, out_width)
    stop_w = tl.minimum(_adaptive_stop(out_w, width, out_width), width)
    total = tl.zeros((BLOCK_W, BLOCK_C), tl.float32)
    for h in range(start_h, stop_h):
        x_row = _row(x_ptr, n, h, height, width, channels)
        for step in range(most_w):
            w = start_w + step
            mask = (w < stop_w) & (c < channels)
            total += tl.load(x_row + (w * channels + c), mask=mask, other=0.0).to(tl.float32)
    size = ((stop_h - start_h) * (stop_w - start_w)).to(tl.float32)
    ptrs = _row(y_ptr, n, out_h, out_height, out_width, channels) + (out_w * channels + c)
    mask = (out_w < out_width) & (c < channels)
    tl.store(ptrs, (total / size).to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=[*LOOP_SIZES, "most_w"])
def _adaptive_avg_pool2d_grad_kernel(
    dy_ptr, dx_ptr, height, width, out_height, out_width, channels, tiles_w, tiles_c, most_w,
    BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """`most_w`: the most windows, across, that share an element.

    The windows that hold element i of `size` are the adaptive windows of `out_size` over `size`.
    """
    n, h, w, c = _tile(tiles_w, tiles_c, height, BLOCK_W, BLOCK_C)
    first_w = _adaptive_start(w, out_width, width)
    end_w = tl.minimum(_adaptive_stop(w, out_width, width), out_width)
    dx = tl.zeros((BLOCK_W, BLOCK_C), tl.float32)
    first_h = _adaptive_start(h, out_height, height)
    for out_h in range(first_h, _adaptive_stop(h, out_height, height)):
        dy_row = _row(dy_ptr, n, out_h, out_height, out_width, channels)
        size_h = _adaptive_stop(out_h, height, out_height) - _adaptive_start(
            out_h, height, out_height
        )
        for step in range(most_w):
            out_w = first_w + step
            mask = (out_w < end_w) & (c < channels)
            dy = tl.load(dy_row + (out_w * channels + c), mask=mask, other=0.0).to(tl.float32)
            size_w = _adaptive_stop(out_w, width, out_width)
            size_w -= _adaptive_start(out_w, width, out_width)
            dx += dy / (size_h * size_w).to(tl.float32)
    ptrs = _row(dx_ptr, n, h, height, width, channels) + (w * channels + c)
    tl.store(ptrs, dx.to(dx_ptr.dtype.element_ty), mask=(w < width) & (c < channels))


def _launch(
    kernel: triton.JITFunction,
    operands: tuple[Tensor | int, ...],
    rows: int,
    width: int,
    channels: int,
    tile: int = TILE,
    **constants: int,
) -> None:
    """One program for each tile of `tile` elements of `rows` rows; 16-byte vectors of channels."""
    block_c = min(triton.next_power_of_2(channels), TILE_CHANNELS)
    block_w = min(triton.next_power_of_2(width), max(tile // block_c, 1))
    tiles_w, tiles_c = triton.cdiv(width, block_w), triton.cdiv(channels, block_c)
    if rows == 0:
        return
    kernel[(rows * tiles_w * tiles_c,)](
        *operands, channels, tiles_w, tiles_c,
        **constants, BLOCK_W=block_w, BLOCK_C=block_c, num_warps=NUM_WARPS,
    )  # fmt: skip


def _sides(x: Tensor, y: Tensor) -> tuple[int, ...]:
    """Height and width of the pooled map and of its pools."""
    return (*x.shape[1:3], *y.shape[1:3])


def _unroll(taps_h: int, taps_w: int) -> int:
    """Taps whose loads are in flight together."""
    return taps_h * taps_w if taps_h * taps_w <= UNROLLED_TAPS else min(taps_w, UNROLLED_TAPS)


def _max_constants(kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> dict[str, int]:
    names = ("KERNEL", "STRIDE", "PADDING", "DILATION")
    pairs = zip(names, (kernel, stride, padding, dilation), strict=True)
    constants = {
        f"{name}_{side}": n for name, pair in pairs for side, n in zip("HW", pair, strict=True)
    }
    return {**constants, "UNROLL": _unroll(*kernel)}


def _avg_constants(
    kernel: Pair, stride: Pair, padding: Pair, count_include_pad: bool, divisor_override: int | None
) -> dict[str, int]:
    names = ("KERNEL", "STRIDE", "PADDING")
    pairs = zip(names, (kernel, stride, padding), strict=True)
    constants = {
        f"{name}_{side}": n for name, pair in pairs for side, n in zip("HW", pair, strict=True)
    }
    return {**constants, "COUNT_PADDING": count_include_pad, "DIVISOR": divisor_override or 0}


def max_pool2d(
    x: Tensor, y: Tensor, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> None:
    """y [N, OH, OW, C] = largest of each window of x [N, H, W, C]; NaN counts as the largest.

    Windows are clipped at the map's edges, so that y's sides may be those of floor or ceil mode.
    """
    samples, out_height, out_width, channels = y.shape
    constants = _max_constants(kernel, stride, padding, dilation)
    operands = (x, y, *_sides(x, y))
    _launch(_max_pool2d_kernel, operands, samples * out_height, out_width, channels, **constants)


def max_pool2d_grad(
    x: Tensor, dy: Tensor, dx: Tensor, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> None:
    """dx [N, H, W, C] = dy of the windows whose maximum an element of x is, the first in a tie."""
    samples, height, width, channels = dx.shape
    cells_h = triton.cdiv(height + padding[0], stride[0])
    cells_w = triton.cdiv(width + padding[1], stride[1])
    cell = triton.next_power_of_2(stride[0] * stride[1])
    _launch(
        _max_pool2d_grad_kernel, (x, dy, dx, *_sides(dx, dy)), samples * cells_h, cells_w, channels,
        tile=max(min(TILE, GRAD_TILE // cell), 1),
        **_max_constants(kernel, stride, padding, dilation),
        cells_h=cells_h, CELL=cell,
        WINDOWS_H=triton.cdiv(dilation[0] * (kernel[0] - 1) + 1, stride[0]),
        WINDOWS_W=triton.cdiv(dilation[1] * (kernel[1] - 1) + 1, stride[1]),
    )  # fmt: skip


def avg_pool2d(
    x: Tensor, y: Tensor, *, kernel: Pair, stride: Pair, padding: Pair,
    count_include_pad: bool, divisor_override: int | None,
) -> None:  # fmt: skip
    """y [N, OH, OW, C] = mean of each window of x [N, H, W, C], with torch's divisors.

    Windows are clipped at the padded map's edges, so that y's sides may be those of ceil mode.
    """
    samples, out_height, out_width, channels = y.shape
    _launch(
        _avg_pool2d_kernel, (x, y, *_sides(x, y)), samples * out_height, out_width, channels,
        **_avg_constants(kernel, stride, padding, count_include_pad, divisor_override),
        UNROLL=_unroll(*kernel),
    )  # fmt: skip


def avg_pool2d_grad(
    dy: Tensor, dx: Tensor, *, kernel: Pair, stride: Pair, padding: Pair,
    count_include_pad: bool, divisor_override: int | None,
) -> None:  # fmt: skip
    """dx [N, H, W, C] = each element's share of dy [N, OH, OW, C]."""
    samples, height, width, channels = dx.shape
    windows = (triton.cdiv(kernel[0], stride[0]), triton.cdiv(kernel[1], stride[1]))
    _launch(
        _avg_pool2d_grad_kernel, (dy, dx, *_sides(dx, dy)), samples * height, width, channels,
        **_avg_constants(kernel, stride, padding, count_include_pad, divisor_override),
        WINDOWS_H=windows[0], WINDOWS_W=windows[1], UNROLL=_unroll(*windows),
    )  # fmt: skip


def adaptive_avg_pool2d(x: Tensor, y: Tensor) -> None:
    """y [N, OH, OW, C] = mean of x [N, H, W, C] over torch's adaptive windows."""
    samples, out_height, out_width, channels = y.shape
    most_w = _most_columns(x.shape[2], out_width)
    operands = (x, y, *_sides(x, y))
    _launch(
        _adaptive_avg_pool2d_kernel,
        operands,
        samples * out_height,
        out_width,
        channels,
        most_w=most_w,
    )


def adaptive_avg_pool2d_grad(dy: Tensor, dx: Tensor) -> None:
    """dx [N, H, W, C] = each element's share of dy [N, OH, OW, C]."""
    samples, height, width, channels = dx.shape
    most_w = _most_columns(dy.shape[2], width)
    operands = (dy, dx, *_sides(dx, dy))
    _launch(
        _adaptive_avg_pool2d_grad_kernel, operands, samples * height, width, channels, most_w=most_w
    )


def _most_columns(size: int, out_size: int) -> int:
    """Columns of the widest adaptive window."""
    return max(-(-(i + 1) * size // out_size) - i * size // out_size for i in range(out_size))


def _nchw(nhwc: Tensor) -> Tensor:
    return nhwc.permute(0, 3, 1, 2).float()


def _ceil_mode(height: int, out_height: int, kernel: int, stride: int, padding: int) -> bool:
    """Whether a side of pools is not that of floor mode."""
    return out_height != (height + 2 * padding - kernel) // stride + 1


def _any_ceil(x: Tensor, y: Tensor, extent: Pair, stride: Pair, padding: Pair) -> bool:
    sides = zip(x.shape[1:3], y.shape[1:3], extent, stride, padding, strict=True)
    return any(_ceil_mode(*side) for side in sides)


def _extent(kernel: Pair, dilation: Pair) -> Pair:
    """Sides that a dilated window spans."""
    return (dilation[0] * (kernel[0] - 1) + 1, dilation[1] * (kernel[1] - 1) + 1)


def max_pool2d_reference(
    x: Tensor, y: Tensor, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> None:
    """What `max_pool2d` computes."""
    ceil = _any_ceil(x, y, _extent(kernel, dilation), stride, padding)
    y.copy_(
        functional.max_pool2d(_nchw(x), kernel, stride, padding, dilation, ceil).permute(0, 2, 3, 1)
    )


def max_pool2d_grad_reference(
    x: Tensor, dy: Tensor, dx: Tensor, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> None:
    """What `max_pool2d_grad` computes."""
    ceil = _any_ceil(x, dy, _extent(kernel, dilation), stride, padding)
    settings = (kernel, stride, padding, dilation, ceil)
    _, argmax = functional.max_pool2d(_nchw(x), *settings, return_indices=True)
    scattered = torch.zeros_like(_nchw(x), memory_format=torch.contiguous_format)
    scattered.flatten(2).scatter_add_(2, argmax.flatten(2), _nchw(dy).flatten(2))
    dx.copy_(scattered.permute(0, 2, 3, 1))


def avg_pool2d_reference(
    x: Tensor, y: Tensor, *, kernel: Pair, stride: Pair, padding: Pair,
    count_include_pad: bool, divisor_override: int | None,
) -> None:  # fmt: skip
    """What `avg_pool2d` computes."""
    ceil = _any_ceil(x, y, kernel, stride, padding)
    settings = (kernel, stride, padding, ceil, count_include_pad, divisor_override)
    y.copy_(functional.avg_pool2d(_nchw(x), *settings).permute(0, 2, 3, 1))


def avg_pool2d_grad_reference(
    dy: Tensor, dx: Tensor, *, kernel: Pair, stride: Pair, padding: Pair,
    count_include_pad: bool, divisor_override: int | None,
) -> None:  # fmt: skip
    """What `avg_pool2d_grad` computes."""
    ceil = _any_ceil(dx, dy, kernel, stride, padding)
    settings = (kernel, stride, padding, ceil, count_include_pad, divisor_override)
    # Contiguous: on CUDA, torch 2.11 errs where windows are padded and maps are channels_last.
    like, given = _nchw(dx).contiguous(), _nchw(dy).contiguous()
    gradient = torch.ops.aten.avg_pool2d_backward(given, like, *settings)
    dx.copy_(gradient.permute(0, 2, 3, 1))


def adaptive_avg_pool2d_reference(x: Tensor, y: Tensor) -> None:
    """What `adaptive_avg_pool2d` computes."""
    y.copy_(functional.adaptive_avg_pool2d(_nchw(x), y.shape[1:3]).permute(0, 2, 3, 1))


def adaptive_avg_pool2d_grad_reference(dy: Tensor, dx: Tensor) -> None:
    """What `adaptive_avg_pool2d_grad` computes."""
    like = torch.empty_like(_nchw(dx))
    gradient = torch.ops.aten._adaptive_avg_pool2d_backward(_nchw(dy), like)
    dx.copy_(gradient.permute(0, 2, 3, 1))

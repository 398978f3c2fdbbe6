"""Max pooling of NHWC maps and its gradient, which finds each window's maximum again or reads it.

A code is the tap of a window's maximum, row by row: 2 bits for windows of up to 4 taps, else 4 bits
for up to 16. Channel j of a byte's channels has the bits from 2 j, or from 4 j, on. Gradients
gather, so that each element is one sum in a fixed order.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from .pool_tiles import (
    LOOP_SIZES,
    NUM_WARPS,
    Pair,
    any_ceil,
    launch,
    nchw,
    row,
    sides,
    tile_place,
    unroll,
)

GRAD_TILE: Final = 2048


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
        ptrs = row(x_ptr, n, h, height, width, channels) + (w * channels + c)
        x = tl.load(ptrs, mask=mask, other=float("-inf")).to(tl.float32)
        replaces = (x > largest) | (x != x)
        largest = tl.where(replaces, x, largest)
        tap_of_max = tl.where(replaces, tap, tap_of_max)
    return largest, tap_of_max


@triton.jit
def _bytes_of_row(tiles_c, BLOCK_C: tl.constexpr, A_BYTE: tl.constexpr):
    """Places [1, BLOCK_C // A_BYTE] in a pixel of the bytes with the codes of a tile's channels."""
    first = (tl.program_id(0) % tiles_c) * (BLOCK_C // A_BYTE)
    return first + tl.arange(0, BLOCK_C // A_BYTE)[None, :]


@triton.jit
def _packed(codes, A_BYTE: tl.constexpr):
    """Codes [W, C] as bytes [W, C // A_BYTE]."""
    shifts = tl.arange(0, A_BYTE) * (8 // A_BYTE)
    members = codes.reshape(codes.shape[0], codes.shape[1] // A_BYTE, A_BYTE)
    return tl.sum(members << shifts[None, None, :], 2).to(tl.uint8)


@triton.jit
def _unpacked(packed, A_BYTE: tl.constexpr):
    """The codes [W, C] in bytes [W, C // A_BYTE]."""
    shifts = tl.arange(0, A_BYTE) * (8 // A_BYTE)
    members = (packed.to(tl.int32)[:, :, None] >> shifts[None, None, :]) & ((1 << 8 // A_BYTE) - 1)
    return members.reshape(packed.shape[0], packed.shape[1] * A_BYTE)


@triton.jit(do_not_specialize=LOOP_SIZES)
def _max_pool2d_kernel(
    x_ptr, y_ptr, codes_ptr, height, width, out_height, out_width, channels, tiles_w, tiles_c,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    UNROLL: tl.constexpr, A_BYTE: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A_BYTE: channels whose codes share a byte, 0 where codes are not wanted."""
    n, h, w, c = tile_place(tiles_w, tiles_c, out_height, BLOCK_W, BLOCK_C)
    largest, tap_of_max = _window_max(
        x_ptr, n, h * STRIDE_H - PADDING_H, w * STRIDE_W - PADDING_W, c, height, width, channels,
        KERNEL_H, KERNEL_W, DILATION_H, DILATION_W, UNROLL,
    )  # fmt: skip
    ptrs = row(y_ptr, n, h, out_height, out_width, channels) + (w * channels + c)
    tl.store(ptrs, largest.to(y_ptr.dtype.element_ty), mask=(w < out_width) & (c < channels))
    if A_BYTE > 0:
        num_bytes = channels // A_BYTE
        place = _bytes_of_row(tiles_c, BLOCK_C, A_BYTE)
        ptrs = row(codes_ptr, n, h, out_height, out_width, num_bytes) + (w * num_bytes + place)
        mask = (w < out_width) & (place < num_bytes)
        tl.store(ptrs, _packed(tap_of_max, A_BYTE), mask=mask)


@triton.jit
def _tap_of_max(
    source_ptr, n, h, w, c, height, width, out_height, out_width, channels, tiles_c,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, UNROLL: tl.constexpr, A_BYTE: tl.constexpr,
):  # fmt: skip
    """Taps of the maxima of windows (h, w): read from codes, or found in the map if A_BYTE is 0."""
    if A_BYTE > 0:
        num_bytes = channels // A_BYTE
        place = _bytes_of_row(tiles_c, c.shape[1], A_BYTE)
        mask = (h >= 0) & (h < out_height) & (w >= 0) & (w < out_width) & (place < num_bytes)
        ptrs = row(source_ptr, n, h, out_height, out_width, num_bytes) + (w * num_bytes + place)
        tap_of_max = _unpacked(tl.load(ptrs, mask=mask, other=0), A_BYTE)
    else:
        _, tap_of_max = _window_max(
            source_ptr, n, h * STRIDE_H - PADDING_H, w * STRIDE_W - PADDING_W, c,
            height, width, channels, KERNEL_H, KERNEL_W, DILATION_H, DILATION_W, UNROLL,
        )  # fmt: skip
    return tap_of_max


@triton.jit(do_not_specialize=[*LOOP_SIZES, "cells_h"])
def _max_pool2d_grad_kernel(
    source_ptr, dy_ptr, dx_ptr,
    height, width, out_height, out_width, channels, tiles_w, tiles_c, cells_h,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    WINDOWS_H: tl.constexpr, WINDOWS_W: tl.constexpr, CELL: tl.constexpr,
    UNROLL: tl.constexpr, A_BYTE: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Cells of STRIDE_H x STRIDE_W elements tile the padded map; window i starts with cell i.

    A cell gathers from the WINDOWS_H x WINDOWS_W windows that may reach it, the earliest first.
    """
    n, cell_h, cell_w, c = tile_place(tiles_w, tiles_c, cells_h, BLOCK_W, BLOCK_C)
    place = tl.arange(0, CELL)[:, None, None]  # [CELL, 1, 1]
    place_h, place_w = place // STRIDE_W, place % STRIDE_W
    dx = tl.zeros((CELL, BLOCK_W, BLOCK_C), tl.float32)
    for window in range(WINDOWS_H * WINDOWS_W):
        back_h = WINDOWS_H - 1 - window // WINDOWS_W
        back_w = WINDOWS_W - 1 - window % WINDOWS_W
        h, w = cell_h - back_h, cell_w - back_w
        mask = (h >= 0) & (h < out_height) & (w >= 0) & (w < out_width) & (c < channels)
        ptrs = row(dy_ptr, n, h, out_height, out_width, channels) + (w * channels + c)
        dy = tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
        tap_of_max = _tap_of_max(
            source_ptr, n, h, w, c, height, width, out_height, out_width, channels, tiles_c,
            KERNEL_H, KERNEL_W, STRIDE_H, STRIDE_W, PADDING_H, PADDING_W, DILATION_H, DILATION_W,
            UNROLL, A_BYTE,
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
    ptrs = row(dx_ptr, n, cell_h * STRIDE_H - PADDING_H, height, width, channels)
    ptrs += (place_h * width + w) * channels + c[None]
    tl.store(ptrs, dx.to(dx_ptr.dtype.element_ty), mask=mask)


def _max_constants(kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> dict[str, int]:
    names = ("KERNEL", "STRIDE", "PADDING", "DILATION")
    pairs = zip(names, (kernel, stride, padding, dilation), strict=True)
    constants = {
        f"{name}_{side}": n for name, pair in pairs for side, n in zip("HW", pair, strict=True)
    }
    return {**constants, "UNROLL": unroll(*kernel)}


def _channels_a_byte(kernel: Pair) -> int:
    """Channels whose codes share a byte."""
    return 4 if kernel[0] * kernel[1] <= 4 else 2


def _pool(x: Tensor, y: Tensor, codes: Tensor | None, a_byte: int, **window: Pair) -> None:
    samples, out_height, out_width, channels = y.shape
    launch(
        _max_pool2d_kernel, (x, y, codes, *sides(x, y)), samples * out_height, out_width, channels,
        **_max_constants(**window), A_BYTE=a_byte, num_warps=1 if a_byte == 4 else NUM_WARPS,
    )  # fmt: skip


def max_pool2d(
    x: Tensor, y: Tensor, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> None:
    """y [N, OH, OW, C] = largest of each window of x [N, H, W, C]; NaN counts as the largest.

    Windows are clipped at the map's edges, so that y's sides may be those of floor or ceil mode.
    """
    _pool(x, y, None, 0, kernel=kernel, stride=stride, padding=padding, dilation=dilation)


def max_pool2d_codes(
    x: Tensor, y: Tensor, codes: Tensor, *,
    kernel: Pair, stride: Pair, padding: Pair, dilation: Pair,
) -> None:  # fmt: skip
    """`max_pool2d`, and the places of its maxima: codes uint8 [N, OH, OW, C // 4], or C // 2.

    Windows have at most 16 taps; C is a multiple of the channels that share a byte.
    """
    window = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    _pool(x, y, codes, _channels_a_byte(kernel), **window)


def _pool_grad(source: Tensor, dy: Tensor, dx: Tensor, a_byte: int, **window: Pair) -> None:
    kernel, stride, padding = window["kernel"], window["stride"], window["padding"]
    samples, height, width, channels = dx.shape
    cells_h = triton.cdiv(height + padding[0], stride[0])
    cells_w = triton.cdiv(width + padding[1], stride[1])
    cell = triton.next_power_of_2(stride[0] * stride[1])
    extent = _extent(kernel, window["dilation"])
    launch(
        _max_pool2d_grad_kernel, (source, dy, dx, *sides(dx, dy)), samples * cells_h, cells_w,
        channels, tile=max(GRAD_TILE // cell, 1), num_warps=2 if a_byte == 0 else 1,
        **_max_constants(**window), cells_h=cells_h, CELL=cell, A_BYTE=a_byte,
        WINDOWS_H=triton.cdiv(extent[0], stride[0]), WINDOWS_W=triton.cdiv(extent[1], stride[1]),
    )  # fmt: skip


def max_pool2d_grad(
    x: Tensor, dy: Tensor, dx: Tensor, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> None:
    """dx [N, H, W, C] = dy of the windows whose maximum an element of x is, the first in a tie."""
    window = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    _pool_grad(x, dy, dx, 0, **window)


def max_unpool2d(
    dy: Tensor, codes: Tensor, dx: Tensor, *, kernel: Pair = (2, 2), stride: Pair = (2, 2),
    padding: Pair = (0, 0), dilation: Pair = (1, 1),
) -> None:  # fmt: skip
    """`max_pool2d_grad`, to the same bits, from the codes that `max_pool2d_codes` left."""
    window = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    _pool_grad(codes, dy, dx, _channels_a_byte(kernel), **window)


def _extent(kernel: Pair, dilation: Pair) -> Pair:
    """Sides that a dilated window spans."""
    return (dilation[0] * (kernel[0] - 1) + 1, dilation[1] * (kernel[1] - 1) + 1)


def _pool_of(x: Tensor, y: Tensor, **window: Pair) -> tuple[Tensor, Tensor]:
    """torch's maxima of the windows and their places in each map, float32 [N, C, OH, OW]."""
    kernel, stride, padding, dilation = window.values()
    ceil = any_ceil(x, y, _extent(kernel, dilation), stride, padding)
    return functional.max_pool2d(
        nchw(x), kernel, stride, padding, dilation, ceil, return_indices=True
    )


def _first_places(out_sides: tuple[int, ...], like: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Row and column at which each window starts: [2, OH, OW]."""
    rows, columns = (
        torch.arange(size, device=like.device) * step - before
        for size, step, before in zip(out_sides, stride, padding, strict=True)
    )
    return torch.stack(torch.meshgrid(rows, columns, indexing="ij"))


def _scatter(dy: Tensor, places: Tensor, dx: Tensor) -> None:
    """dx = dy, each added at its place [N, C, OH, OW] of the map."""
    total = torch.zeros(dx.shape[0], dx.shape[3], dx.shape[1] * dx.shape[2], device=dx.device)
    total.scatter_add_(2, places.flatten(2), nchw(dy).flatten(2))
    dx.copy_(total.unflatten(2, dx.shape[1:3]).permute(0, 2, 3, 1))


def max_pool2d_reference(
    x: Tensor, y: Tensor, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> None:
    """What `max_pool2d` computes."""
    maxima, _ = _pool_of(x, y, kernel=kernel, stride=stride, padding=padding, dilation=dilation)
    y.copy_(maxima.permute(0, 2, 3, 1))


def max_pool2d_codes_reference(
    x: Tensor, y: Tensor, codes: Tensor, *,
    kernel: Pair, stride: Pair, padding: Pair, dilation: Pair,
) -> None:  # fmt: skip
    """What `max_pool2d_codes` computes."""
    window = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    maxima, places = _pool_of(x, y, **window)
    y.copy_(maxima.permute(0, 2, 3, 1))
    first_h, first_w = _first_places(y.shape[1:3], y, stride, padding)
    tap_h = (places // x.shape[2] - first_h) // dilation[0]
    tap_w = (places % x.shape[2] - first_w) // dilation[1]
    codes.copy_(_pack((tap_h * kernel[1] + tap_w).permute(0, 2, 3, 1), _channels_a_byte(kernel)))


def max_pool2d_grad_reference(
    x: Tensor, dy: Tensor, dx: Tensor, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> None:
    """What `max_pool2d_grad` computes."""
    window = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    _scatter(dy, _pool_of(x, dy, **window)[1], dx)


def max_unpool2d_reference(
    dy: Tensor, codes: Tensor, dx: Tensor, *, kernel: Pair = (2, 2), stride: Pair = (2, 2),
    padding: Pair = (0, 0), dilation: Pair = (1, 1),
) -> None:  # fmt: skip
    """What `max_unpool2d` computes."""
    tap = _unpack(codes, _channels_a_byte(kernel)).permute(0, 3, 1, 2)
    first_h, first_w = _first_places(dy.shape[1:3], dy, stride, padding)
    h = first_h + tap // kernel[1] * dilation[0]
    w = first_w + tap % kernel[1] * dilation[1]
    _scatter(dy, h * dx.shape[2] + w, dx)


def _pack(codes: Tensor, a_byte: int) -> Tensor:
    """Codes [..., C] as bytes [..., C // a_byte]."""
    shifts = torch.arange(a_byte, device=codes.device) * (8 // a_byte)
    return (codes.unflatten(-1, (-1, a_byte)) << shifts).sum(-1)


def _unpack(packed: Tensor, a_byte: int) -> Tensor:
    """The codes [..., C] in bytes [..., C // a_byte]."""
    shifts = torch.arange(a_byte, device=packed.device) * (8 // a_byte)
    members = packed.long()[..., None] >> shifts & ((1 << 8 // a_byte) - 1)
    return members.flatten(-2)

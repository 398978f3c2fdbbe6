"""Max pooling of NHWC maps and its gradient, which finds each window's maximum again or reads it.

A code is the tap of a window's maximum, row by row: 2 bits for windows of up to 4 taps, else 4 bits
for up to 16. Channel j of a byte's channels has the bits from 2 j, or from 4 j, on. Gradients
gather, so that each element is one sum in a fixed order.
"""

from math import prod
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from .pool_tiles import (
    LOOP_SIZES,
    UNROLLED_TAPS,
    Pair,
    any_ceil,
    launch,
    nchw,
    row,
    sides,
    tile_place,
)
from .pool_window import row_max, window_max
from .rounding import stored, stored_reference

# Windows 3x3 of stride 2 with codes, over 1024x55x55x64 in bfloat16 (H200, 2026-11-21):
ROWS: Final = 9  # of pools in a program whose windows share rows: 69% of a copy's speed, 1 row 51%
GRAD_ROWS: Final = 4  # of cells in a program that share windows: 80%, 1 row 62%
PROGRAMS: Final = 1024  # that a launch has at least, where its maps have as many rows


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
def _is_code(packed, code, A_BYTE: tl.constexpr):
    """Where bytes [W, C // A_BYTE] hold a code: [W, C]."""
    shifts = tl.arange(0, A_BYTE) * (8 // A_BYTE)
    everywhere = code * (0x11 if A_BYTE == 2 else 0x55)
    differing = (packed.to(tl.int32) ^ everywhere)[:, :, None]
    members = differing & (((1 << 8 // A_BYTE) - 1) << shifts)[None, None, :]
    return (members == 0).reshape(packed.shape[0], packed.shape[1] * A_BYTE)


@triton.jit(do_not_specialize=[*LOOP_SIZES, "blocks_h", "block_h"])
def _max_pool2d_kernel(
    x_ptr, y_ptr, codes_ptr, height, width, out_height, out_width, channels, tiles_w, tiles_c,
    blocks_h, block_h,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    A_BYTE: tl.constexpr,
    BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A program pools `block_h` rows, more than one only where windows share the row they meet in.

    A_BYTE: channels whose codes share a byte, 0 where codes are not wanted.
    """
    n, block, w, c = tile_place(tiles_w, tiles_c, blocks_h, BLOCK_W, BLOCK_C)
    first_w = w * STRIDE_W - PADDING_W
    start = block * block_h
    largest, column = row_max(
        x_ptr, n, start * STRIDE_H - PADDING_H, first_w, c, height, width, channels,
        KERNEL_W, DILATION_W,
    )  # fmt: skip
    for h in range(start, tl.minimum(start + block_h, out_height)):
        y, tap_of_max, largest, column = window_max(
            largest, column, x_ptr, n, h * STRIDE_H - PADDING_H, first_w, c,
            height, width, channels,
            KERNEL_H, KERNEL_W, DILATION_H, DILATION_W,
        )  # fmt: skip
        ptrs = row(y_ptr, n, h, out_height, out_width, channels) + (w * channels + c)
        tl.store(ptrs, y.to(y_ptr.dtype.element_ty), mask=(w < out_width) & (c < channels))
        if A_BYTE > 0:
            num_bytes = channels // A_BYTE
            place = _bytes_of_row(tiles_c, BLOCK_C, A_BYTE)
            ptrs = row(codes_ptr, n, h, out_height, out_width, num_bytes) + (w * num_bytes + place)
            mask = (w < out_width) & (place < num_bytes)
            tl.store(ptrs, _packed(tap_of_max, A_BYTE), mask=mask)


@triton.jit
def _argmax(
    x_ptr, n, h, w, c, height, width, channels,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
):  # fmt: skip
    """Taps of the maxima of windows (h, w)."""
    first_h, first_w = h * STRIDE_H - PADDING_H, w * STRIDE_W - PADDING_W
    largest, column = row_max(
        x_ptr, n, first_h, first_w, c, height, width, channels, KERNEL_W, DILATION_W
    )
    _, tap_of_max, _, _ = window_max(
        largest, column, x_ptr, n, first_h, first_w, c, height, width, channels,
        KERNEL_H, KERNEL_W, DILATION_H, DILATION_W,
    )  # fmt: skip
    return tap_of_max


@triton.jit
def _load_grad(dy_ptr, n, h, w, c, out_height, out_width, channels):
    mask = (h >= 0) & (h < out_height) & (w >= 0) & (w < out_width) & (c < channels)
    ptrs = row(dy_ptr, n, h, out_height, out_width, channels) + (w * channels + c)
    return tl.load(ptrs, mask=mask, other=0.0)


@triton.jit
def _load_codes(
    codes_ptr, n, h, w, out_height, out_width, channels, tiles_c,
    A_BYTE: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    num_bytes = channels // A_BYTE
    place = _bytes_of_row(tiles_c, BLOCK_C, A_BYTE)
    mask = (h >= 0) & (h < out_height) & (w >= 0) & (w < out_width) & (place < num_bytes)
    ptrs = row(codes_ptr, n, h, out_height, out_width, num_bytes) + (w * num_bytes + place)
    return tl.load(ptrs, mask=mask, other=0)


@triton.jit
def _window_row(
    source_ptr, dy_ptr, n, h, cell_w, c, height, width, out_height, out_width, channels, tiles_c,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    WINDOWS_W: tl.constexpr, A_BYTE: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """Of the windows of row h that may reach the cells: dy, and codes or taps, of one by one."""
    windows = ()
    for i in tl.static_range(WINDOWS_W):
        w = cell_w - (WINDOWS_W - 1 - i)
        windows += (_load_grad(dy_ptr, n, h, w, c, out_height, out_width, channels),)
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
                    source_ptr, n, h, w, c, height, width, channels, KERNEL_H, KERNEL_W,
                    STRIDE_H, STRIDE_W, PADDING_H, PADDING_W, DILATION_H, DILATION_W,
                ),
            )  # fmt: skip
    return windows


@triton.jit
def _with_window(
    dx, dy, source, OFFSET_H: tl.constexpr, OFFSET_W: tl.constexpr,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, A_BYTE: tl.constexpr,
):  # fmt: skip
    """The gradient of elements so far into a window, with what the window gives them."""
    TAP_H: tl.constexpr = OFFSET_H // DILATION_H
    TAP_W: tl.constexpr = OFFSET_W // DILATION_W
    ON_TAP: tl.constexpr = TAP_H * DILATION_H == OFFSET_H and TAP_W * DILATION_W == OFFSET_W
    if ON_TAP and TAP_H < KERNEL_H and TAP_W < KERNEL_W:
        if A_BYTE > 0:
            is_max = _is_code(source, TAP_H * KERNEL_W + TAP_W, A_BYTE)
        else:
            is_max = source == TAP_H * KERNEL_W + TAP_W
        dx += tl.where(is_max, dy.to(tl.float32), 0.0)
    return dx


@triton.jit
def _gathered(
    windows, PLACE_H: tl.constexpr, PLACE_W: tl.constexpr,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    WINDOWS_H: tl.constexpr, WINDOWS_W: tl.constexpr, A_BYTE: tl.constexpr,
):  # fmt: skip
    """The gradient of the elements at a place of their cells, from windows, the earliest first."""
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
def _store_grad(dx_ptr, dx, n, h, w, c, height, width, channels, PRECISION: tl.constexpr):
    mask = (h >= 0) & (h < height) & (w >= 0) & (w < width) & (c < channels)
    ptrs = row(dx_ptr, n, h, height, width, channels) + (w * channels + c)
    tl.store(ptrs, stored(dx, dx_ptr.dtype.element_ty, PRECISION), mask=mask)


@triton.jit(do_not_specialize=[*LOOP_SIZES, "cells_h", "blocks_h", "block_h"])
def _max_pool2d_grad_kernel(
    source_ptr, dy_ptr, dx_ptr,
    height, width, out_height, out_width, channels, tiles_w, tiles_c, cells_h, blocks_h, block_h,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    WINDOWS_H: tl.constexpr, WINDOWS_W: tl.constexpr, A_BYTE: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Cells of STRIDE_H x STRIDE_W elements tile the padded map; window i starts with cell i.

    A cell gathers from the WINDOWS_H x WINDOWS_W windows that may reach it. A program has `block_h`
    rows of cells, and keeps the windows that reach its next row as well.
    """
    n, block, cell_w, c = tile_place(tiles_w, tiles_c, blocks_h, BLOCK_W, BLOCK_C)
    start = block * block_h
    kept = ()
    for back in tl.static_range(1, WINDOWS_H):
        kept += _window_row(
            source_ptr, dy_ptr, n, start - (WINDOWS_H - back), cell_w, c,
            height, width, out_height, out_width, channels, tiles_c,
            KERNEL_H, KERNEL_W, STRIDE_H, STRIDE_W, PADDING_H, PADDING_W, DILATION_H, DILATION_W,
            WINDOWS_W, A_BYTE,
        )  # fmt: skip
    for cell_h in range(start, tl.minimum(start + block_h, cells_h)):
        windows = kept + _window_row(
            source_ptr, dy_ptr, n, cell_h, cell_w, c,
            height, width, out_height, out_width, channels, tiles_c,
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
            _store_grad(dx_ptr, dx, n, h, w, c, height, width, channels, PRECISION)
        kept = windows[2 * WINDOWS_W :]


@triton.jit(do_not_specialize=LOOP_SIZES)
def _max_pool2d_grad_loop_kernel(
    x_ptr, dy_ptr, dx_ptr, height, width, out_height, out_width, channels, tiles_w, tiles_c,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    WINDOWS_H: tl.constexpr, WINDOWS_W: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """An element gathers from any number of windows, the earliest first."""
    n, h, w, c = tile_place(tiles_w, tiles_c, height, BLOCK_W, BLOCK_C)
    dx = tl.zeros((BLOCK_W, BLOCK_C), tl.float32)
    for window in range(WINDOWS_H * WINDOWS_W):
        out_h = (h + PADDING_H) // STRIDE_H - (WINDOWS_H - 1 - window // WINDOWS_W)
        out_w = (w + PADDING_W) // STRIDE_W - (WINDOWS_W - 1 - window % WINDOWS_W)
        dy = _load_grad(dy_ptr, n, out_h, out_w, c, out_height, out_width, channels)
        tap_of_max = _argmax(
            x_ptr, n, out_h, out_w, c, height, width, channels, KERNEL_H, KERNEL_W,
            STRIDE_H, STRIDE_W, PADDING_H, PADDING_W, DILATION_H, DILATION_W,
        )  # fmt: skip
        is_max = h == out_h * STRIDE_H - PADDING_H + tap_of_max // KERNEL_W * DILATION_H
        is_max &= w == out_w * STRIDE_W - PADDING_W + tap_of_max % KERNEL_W * DILATION_W
        dx += tl.where(is_max, dy.to(tl.float32), 0.0)
    _store_grad(dx_ptr, dx, n, h, w, c, height, width, channels, PRECISION)


def _max_constants(kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> dict[str, int]:
    names = ("KERNEL", "STRIDE", "PADDING", "DILATION")
    pairs = zip(names, (kernel, stride, padding, dilation), strict=True)
    return {f"{name}_{side}": n for name, pair in pairs for side, n in zip("HW", pair, strict=True)}


def _channels_a_byte(kernel: Pair) -> int:
    """Channels whose codes share a byte."""
    return 4 if kernel[0] * kernel[1] <= 4 else 2


def _rows_a_program(rows: int, samples: int, most: int) -> int:
    """Rows of a map's pools, or of its cells, in a program: fewer where a launch has few."""
    return max(min(most, samples * rows // PROGRAMS), 1)


def _pool(x: Tensor, y: Tensor, codes: Tensor | None, a_byte: int, **window: Pair) -> None:
    samples, out_height, out_width, channels = y.shape
    shared = _extent(window["kernel"], window["dilation"])[0] - 1 == window["stride"][0]
    block_h = _rows_a_program(out_height, samples, ROWS if shared else 1)
    blocks_h = triton.cdiv(out_height, block_h)
    launch(
        _max_pool2d_kernel, (x, y, codes, *sides(x, y)), samples * blocks_h, out_width, channels,
        **_max_constants(**window), blocks_h=blocks_h, block_h=block_h, A_BYTE=a_byte,
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


def _pool_grad(
    source: Tensor, dy: Tensor, dx: Tensor, a_byte: int, precision: str, **window: Pair
) -> None:
    kernel, stride, padding = window["kernel"], window["stride"], window["padding"]
    samples, height, width, channels = dx.shape
    operands = (source, dy, dx, *sides(dx, dy))
    extent = _extent(kernel, window["dilation"])
    windows = [triton.cdiv(*each) for each in zip(extent, stride, strict=True)]
    constants: dict[str, int | str] = {"WINDOWS_H": windows[0], "WINDOWS_W": windows[1]}
    constants |= _max_constants(**window) | {"PRECISION": precision}
    if prod(windows) > UNROLLED_TAPS:
        rows = samples * height
        launch(_max_pool2d_grad_loop_kernel, operands, rows, width, channels, **constants)
        return
    cells_h = triton.cdiv(height + padding[0], stride[0])
    cells_w = triton.cdiv(width + padding[1], stride[1])
    block_h = _rows_a_program(cells_h, samples, GRAD_ROWS if windows[0] > 1 else 1)
    blocks_h = triton.cdiv(cells_h, block_h)
    launch(
        _max_pool2d_grad_kernel, operands, samples * blocks_h, cells_w, channels, **constants,
        cells_h=cells_h, blocks_h=blocks_h, block_h=block_h, A_BYTE=a_byte,
    )  # fmt: skip


def max_pool2d_grad(
    x: Tensor, dy: Tensor, dx: Tensor, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair,
    precision: str = "ieee",
) -> None:  # fmt: skip
    """dx [N, H, W, C] = dy of the windows whose maximum an element of x is, the first in a tie.

    It is rounded as products of `precision` will read it.
    """
    window = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    _pool_grad(x, dy, dx, 0, precision, **window)


def max_unpool2d(
    dy: Tensor, codes: Tensor, dx: Tensor, *, kernel: Pair = (2, 2), stride: Pair = (2, 2),
    padding: Pair = (0, 0), dilation: Pair = (1, 1), precision: str = "ieee",
) -> None:  # fmt: skip
    """`max_pool2d_grad`, to the same bits, from the codes that `max_pool2d_codes` left."""
    window = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    _pool_grad(codes, dy, dx, _channels_a_byte(kernel), precision, **window)


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


def _scatter(dy: Tensor, places: Tensor, dx: Tensor, precision: str) -> None:
    """dx = dy, each added at its place [N, C, OH, OW] of the map."""
    total = torch.zeros(dx.shape[0], dx.shape[3], dx.shape[1] * dx.shape[2], device=dx.device)
    total.scatter_add_(2, places.flatten(2), nchw(dy).flatten(2))
    rounded = stored_reference(total, dx.dtype, precision)
    dx.copy_(rounded.unflatten(2, dx.shape[1:3]).permute(0, 2, 3, 1))


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
    x: Tensor, dy: Tensor, dx: Tensor, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair,
    precision: str = "ieee",
) -> None:  # fmt: skip
    """What `max_pool2d_grad` computes."""
    window = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    _scatter(dy, _pool_of(x, dy, **window)[1], dx, precision)


def max_unpool2d_reference(
    dy: Tensor, codes: Tensor, dx: Tensor, *, kernel: Pair = (2, 2), stride: Pair = (2, 2),
    padding: Pair = (0, 0), dilation: Pair = (1, 1), precision: str = "ieee",
) -> None:  # fmt: skip
    """What `max_unpool2d` computes."""
    tap = _unpack(codes, _channels_a_byte(kernel)).permute(0, 3, 1, 2)
    first_h, first_w = _first_places(dy.shape[1:3], dy, stride, padding)
    h = first_h + tap // kernel[1] * dilation[0]
    w = first_w + tap % kernel[1] * dilation[1]
    _scatter(dy, h * dx.shape[2] + w, dx, precision)


def _pack(codes: Tensor, a_byte: int) -> Tensor:
    """Codes [..., C] as bytes [..., C // a_byte]."""
    shifts = torch.arange(a_byte, device=codes.device) * (8 // a_byte)
    return (codes.unflatten(-1, (-1, a_byte)) << shifts).sum(-1)


def _unpack(packed: Tensor, a_byte: int) -> Tensor:
    """The codes [..., C] in bytes [..., C // a_byte]."""
    shifts = torch.arange(a_byte, device=packed.device) * (8 // a_byte)
    members = packed.long()[..., None] >> shifts & ((1 << 8 // a_byte) - 1)
    return members.flatten(-2)

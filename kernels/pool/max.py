"""Max pooling of NHWC maps, which may note where in each window the maximum lies."""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from ..codec.argmax import bytes_of_row, channels_a_byte, pack, packed_codes
from ..language.map_tiles import (
    LOOP_SIZES,
    OVERLAP_TILE,
    TILE,
    Pair,
    any_ceil,
    launch,
    nchw,
    row,
    sides,
    tile_place,
)
from .window import row_max, window_max

# Windows 3x3 of stride 2 with codes, over 1024x55x55x64 (H200, 2026-11-21):
ROWS: Final = 9  # of pools in a program whose windows share rows: 69% of a copy's speed, 1 row 51%
QUICK_ROWS: Final = 14  # in float32, whose codes take 252 us so, exact ones 341; in bfloat16 164
PROGRAMS: Final = 1024  # that a launch has at least, where its maps have as many rows


@triton.jit
def _pool_rows(
    x_ptr, y_ptr, codes_ptr, n, start, stop, w, c,
    height, width, out_height, out_width, x_pitch, y_pitch, channels, tiles_c,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    A_BYTE: tl.constexpr, EXACT: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Pool the rows [start, stop); where not EXACT, NaN where a maximum was NaN or infinite."""
    first_w = w * STRIDE_W - PADDING_W
    unclear = tl.zeros((w.shape[0], c.shape[1]), tl.float32)
    largest, column = row_max(
        x_ptr, n, start * STRIDE_H - PADDING_H, first_w, c, height, width, channels,
        x_pitch, KERNEL_W, DILATION_W, EXACT,
    )  # fmt: skip
    for h in range(start, stop):
        y, tap_of_max, largest, column = window_max(
            largest, column, x_ptr, n, h * STRIDE_H - PADDING_H, first_w, c,
            height, width, channels, x_pitch,
            KERNEL_H, KERNEL_W, DILATION_H, DILATION_W, EXACT,
        )  # fmt: skip
        ptrs = row(y_ptr, n, h, out_height, out_width, y_pitch) + (w * y_pitch + c)
        tl.store(ptrs, y.to(y_ptr.dtype.element_ty), mask=(w < out_width) & (c < channels))
        if not EXACT:
            unclear = tl.fma(y, 0.0, unclear)
        if A_BYTE > 0:
            num_bytes = channels // A_BYTE
            place = bytes_of_row(tiles_c, c.shape[1], A_BYTE)
            ptrs = row(codes_ptr, n, h, out_height, out_width, num_bytes) + (w * num_bytes + place)
            mask = (w < out_width) & (place < num_bytes)
            tl.store(ptrs, packed_codes(tap_of_max, A_BYTE), mask=mask)
    return unclear


@triton.jit(do_not_specialize=[*LOOP_SIZES, "blocks_h", "block_h"])
def _max_pool2d_kernel(
    x_ptr, y_ptr, codes_ptr, height, width, out_height, out_width, x_pitch, y_pitch,
    channels, tiles_w, tiles_c, blocks_h, block_h,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    A_BYTE: tl.constexpr, QUICK: tl.constexpr,
    BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A program pools `block_h` rows, more than one only where windows share the row they meet in.

    A_BYTE: channels whose codes share a byte, 0 where codes are not wanted. A QUICK program takes
    maxima for finite, and pools once more, exactly, where it has met others.
    """
    n, block, w, c = tile_place(tiles_w, tiles_c, blocks_h, BLOCK_W, BLOCK_C)
    start = block * block_h
    stop = tl.minimum(start + block_h, out_height)
    unclear = _pool_rows(
        x_ptr, y_ptr, codes_ptr, n, start, stop, w, c,
        height, width, out_height, out_width, x_pitch, y_pitch, channels, tiles_c,
        KERNEL_H, KERNEL_W, STRIDE_H, STRIDE_W, PADDING_H, PADDING_W, DILATION_H, DILATION_W,
        A_BYTE, not QUICK,
    )  # fmt: skip
    if QUICK:
        met = (unclear != unclear) & (w < out_width) & (c < channels)
        if tl.max(tl.max(met.to(tl.int32), 1), 0) > 0:
            _pool_rows(
                x_ptr, y_ptr, codes_ptr, n, start, stop, w, c,
                height, width, out_height, out_width, x_pitch, y_pitch, channels, tiles_c,
                KERNEL_H, KERNEL_W, STRIDE_H, STRIDE_W, PADDING_H, PADDING_W,
                DILATION_H, DILATION_W, A_BYTE, True,
            )  # fmt: skip


def max_constants(kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> dict[str, int]:
    names = ("KERNEL", "STRIDE", "PADDING", "DILATION")
    pairs = zip(names, (kernel, stride, padding, dilation), strict=True)
    return {f"{name}_{side}": n for name, pair in pairs for side, n in zip("HW", pair, strict=True)}


def rows_a_program(rows: int, samples: int, most: int) -> int:
    """Rows of a map's pools, or of its cells, in a program: fewer where a launch has few."""
    return max(min(most, samples * rows // PROGRAMS), 1)


def _pool(x: Tensor, y: Tensor, codes: Tensor | None, a_byte: int, **window: Pair) -> None:
    samples, out_height, out_width, channels = y.shape
    shared = extent_of(window["kernel"], window["dilation"])[0] - 1 == window["stride"][0]
    quick = shared and codes is not None and x.dtype == torch.float32
    most = QUICK_ROWS if quick else ROWS if shared else 1
    block_h = rows_a_program(out_height, samples, most)
    blocks_h = triton.cdiv(out_height, block_h)
    launch(
        _max_pool2d_kernel, (x, y, codes, *sides(x, y)), samples * blocks_h, out_width, channels,
        OVERLAP_TILE if quick else TILE, **max_constants(**window),
        blocks_h=blocks_h, block_h=block_h, A_BYTE=a_byte, QUICK=quick,
    )  # fmt: skip


def max_pool2d(
    x: Tensor, y: Tensor, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> None:
    """y [N, OH, OW, C] = largest of each window of x [N, H, W, C]; NaN counts as the largest.

    Both may be ranges of the channels of wider maps.
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
    _pool(x, y, codes, channels_a_byte(kernel), **window)


def extent_of(kernel: Pair, dilation: Pair) -> Pair:
    """Sides that a dilated window spans."""
    return (dilation[0] * (kernel[0] - 1) + 1, dilation[1] * (kernel[1] - 1) + 1)


def pool_of(x: Tensor, y: Tensor, **window: Pair) -> tuple[Tensor, Tensor]:
    """torch's maxima of the windows and their places in each map, float32 [N, C, OH, OW]."""
    kernel, stride, padding, dilation = window.values()
    ceil = any_ceil(x, y, extent_of(kernel, dilation), stride, padding)
    return functional.max_pool2d(
        nchw(x), kernel, stride, padding, dilation, ceil, return_indices=True
    )


def first_places(out_sides: tuple[int, ...], like: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Row and column at which each window starts: [2, OH, OW]."""
    rows, columns = (
        torch.arange(size, device=like.device) * step - before
        for size, step, before in zip(out_sides, stride, padding, strict=True)
    )
    return torch.stack(torch.meshgrid(rows, columns, indexing="ij"))


def max_pool2d_reference(
    x: Tensor, y: Tensor, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> None:
    """What `max_pool2d` computes."""
    maxima, _ = pool_of(x, y, kernel=kernel, stride=stride, padding=padding, dilation=dilation)
    y.copy_(maxima.permute(0, 2, 3, 1))


def max_pool2d_codes_reference(
    x: Tensor, y: Tensor, codes: Tensor, *,
    kernel: Pair, stride: Pair, padding: Pair, dilation: Pair,
) -> None:  # fmt: skip
    """What `max_pool2d_codes` computes."""
    window = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    maxima, places = pool_of(x, y, **window)
    y.copy_(maxima.permute(0, 2, 3, 1))
    first_h, first_w = first_places(y.shape[1:3], y, stride, padding)
    tap_h = (places // x.shape[2] - first_h) // dilation[0]
    tap_w = (places % x.shape[2] - first_w) // dilation[1]
    codes.copy_(pack((tap_h * kernel[1] + tap_w).permute(0, 2, 3, 1), channels_a_byte(kernel)))

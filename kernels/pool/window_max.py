"""Maxima of pooling windows over NHWC maps, row by row, and the taps where the maxima lie."""

import triton
import triton.language as tl

from ..language.map_tiles import UNROLLED_TAPS, row

UNROLLED = tl.constexpr(UNROLLED_TAPS)


@triton.jit
def _wide(x):
    """x as float32. bfloat16 is shifted as bits; the compiler would else compare in bfloat16."""
    if x.dtype == tl.bfloat16:
        wide = (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        wide = x.to(tl.float32)
    return wide


@triton.jit
def _larger(largest, place, x, place_of_x, EXACT: tl.constexpr):
    """The larger of two values, and its place: the first of equal values, the last NaN.

    Without EXACT the place of a NaN is arbitrary, which saves a comparison.
    """
    if EXACT:
        place = tl.where((x > largest) | (x != x), place_of_x, place)
    else:
        place = tl.where(x <= largest, place, place_of_x)
    return tl.maximum(largest, x, propagate_nan=tl.PropagateNan.ALL), place


@triton.jit
def _columns(
    x_ptr, n, h, first_w, c, height, width, channels, pitch,
    NUM: tl.constexpr, DILATION_W: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """NUM columns of row h from `first_w` on, -inf outside the map: [BLOCK_W, BLOCK_C] each."""
    x_row = row(x_ptr, n, h, height, width, pitch)
    columns = ()
    for tap in tl.static_range(NUM):
        w = first_w + tap * DILATION_W
        mask = (h >= 0) & (h < height) & (c < channels) & (w >= 0) & (w < width)
        columns += (tl.load(x_row + (w * pitch + c), mask=mask, other=float("-inf")),)
    return columns


@triton.jit
def _max_of(columns, FIRST: tl.constexpr, NUM: tl.constexpr, EXACT: tl.constexpr):
    """The largest of NUM columns from column FIRST on, and its index among them."""
    largest = _wide(columns[FIRST])
    place = tl.zeros(largest.shape, tl.int32)
    for i in tl.static_range(1, NUM):
        largest, place = _larger(largest, place, _wide(columns[FIRST + i]), i, EXACT)
    return largest, place


@triton.jit
def row_max(
    x_ptr, n, h, first_w, c, height, width, channels, pitch,
    KERNEL_W: tl.constexpr, DILATION_W: tl.constexpr, EXACT: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """The largest value of row h in each window from column `first_w` on, and its tap's column."""
    if KERNEL_W <= UNROLLED:
        columns = _columns(
            x_ptr, n, h, first_w, c, height, width, channels, pitch, KERNEL_W, DILATION_W
        )
        largest, place = _max_of(columns, 0, KERNEL_W, EXACT)
    else:
        columns = _columns(x_ptr, n, h, first_w, c, height, width, channels, pitch, 1, DILATION_W)
        largest, place = _max_of(columns, 0, 1, EXACT)
        for tap in range(1, KERNEL_W):
            w = first_w + tap * DILATION_W
            columns = _columns(x_ptr, n, h, w, c, height, width, channels, pitch, 1, DILATION_W)
            largest, place = _larger(largest, place, _wide(columns[0]), tap, EXACT)
    return largest, place


@triton.jit
def _first_tap(
    first_h, first_w, KERNEL_W: tl.constexpr, DILATION_H: tl.constexpr, DILATION_W: tl.constexpr
):
    """The first tap inside the map. It is the maximum of a window whose values are all -inf."""
    skipped_h = tl.maximum((DILATION_H - 1 - first_h) // DILATION_H, 0)
    skipped_w = tl.maximum((DILATION_W - 1 - first_w) // DILATION_W, 0)
    return skipped_h * KERNEL_W + skipped_w


@triton.jit
def window_max(
    largest, column, x_ptr, n, first_h, first_w, c, height, width, channels, pitch,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, EXACT: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """The largest value of each window and its tap; then those of the window's last row.

    The tap is that of the first of equal values, or of the last NaN. Without EXACT the taps of NaN
    and of -inf are arbitrary. Windows start at (first_h, first_w). `largest` and `column` are the
    maxima of their first row, from `row_max`. All loads of a small window are in flight together.
    """
    total, tap_of_max = largest, column
    if EXACT:
        first_tap = _first_tap(first_h, first_w, KERNEL_W, DILATION_H, DILATION_W)
        tap_of_max = tl.where(largest == float("-inf"), first_tap, column)
    if KERNEL_H * KERNEL_W <= UNROLLED:
        columns = ()
        for tap in tl.static_range(1, KERNEL_H):
            h = first_h + tap * DILATION_H
            columns += _columns(
                x_ptr, n, h, first_w, c, height, width, channels, pitch, KERNEL_W, DILATION_W
            )
        for tap in tl.static_range(1, KERNEL_H):
            largest, column = _max_of(columns, (tap - 1) * KERNEL_W, KERNEL_W, EXACT)
            total, tap_of_max = _larger(total, tap_of_max, largest, tap * KERNEL_W + column, EXACT)
    else:
        for tap in range(1, KERNEL_H):
            h = first_h + tap * DILATION_H
            largest, column = row_max(
                x_ptr, n, h, first_w, c, height, width, channels, pitch, KERNEL_W, DILATION_W,
                EXACT,
            )  # fmt: skip
            total, tap_of_max = _larger(total, tap_of_max, largest, tap * KERNEL_W + column, EXACT)
    return total, tap_of_max, largest, column

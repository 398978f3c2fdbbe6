"""Maxima of pooling windows over NHWC maps, row by row, and where in their windows they lie."""

import triton
import triton.language as tl

from ..language.map_tiles import UNROLLED_TAPS, row

UNROLLED = tl.constexpr(UNROLLED_TAPS)


@triton.jit
def _wide(x):
    """x as float32; bfloat16 by its bits, which keeps the compiler from comparing in bfloat16."""
    if x.dtype == tl.bfloat16:
        wide = (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        wide = x.to(tl.float32)
    return wide


@triton.jit
def _larger(largest, place, x, place_of_x, EXACT: tl.constexpr):
    """The larger of two values and its place: the first's in a tie, the last's of NaN.

    Where not EXACT, NaN's is any place, which takes one comparison.
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
    """NUM columns of row h from `first_w` on, -inf outside of the map: [BLOCK_W, BLOCK_C] each."""
    x_row = row(x_ptr, n, h, height, width, pitch)
    columns = ()
    for tap in tl.static_range(NUM):
        w = first_w + tap * DILATION_W
        mask = (h >= 0) & (h < height) & (c < channels) & (w >= 0) & (w < width)
        columns += (tl.load(x_row + (w * pitch + c), mask=mask, other=float("-inf")),)
    return columns


@triton.jit
def _max_of(columns, FIRST: tl.constexpr, NUM: tl.constexpr, EXACT: tl.constexpr):
    """Largest of NUM columns from the one at FIRST on, and its number among them."""
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
    """Largest of row h in each window that starts at columns `first_w`, and its column in there."""
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
    """The first tap that lies in the map, which is taken where all is -inf."""
    skipped_h = tl.maximum((DILATION_H - 1 - first_h) // DILATION_H, 0)
    skipped_w = tl.maximum((DILATION_W - 1 - first_w) // DILATION_W, 0)
    return skipped_h * KERNEL_W + skipped_w


@triton.jit
def window_max(
    largest, column, x_ptr, n, first_h, first_w, c, height, width, channels, pitch,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, EXACT: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """Largest value of each window, and the index of its tap: the first such, or the last NaN.

    Where not EXACT, the tap of NaN or of -inf is any.
    Windows start at row `first_h`, whose maxima are given, and at columns `first_w`. The maxima of
    their last row come third and fourth. The loads of a small window are all under way at once.
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

"""Maxima of pooling windows over NHWC maps, row by row, and the taps where the maxima lie.

RULE is "exact", or for finite maxima "finite", or "pairs" with instructions for two bfloat16 values
that Hopper has. A kernel that meets another maximum than a finite one starts again with "exact".
"""

import triton
import triton.language as tl

from ..language.map_tiles import UNROLLED_TAPS, row
from ..language.rounding import PLAIN

UNROLLED = tl.constexpr(UNROLLED_TAPS)


# The largest values and their places, pairs of bfloat16 and of int16. Both stay where the new value
# is at most as large. The new place is an offset more than the operand.
LARGER_PAIR = tl.constexpr(
    "{ .reg .b32 stays, place, larger;"
    " set.le.u32.bf16x2 stays, $4, $2;"
    " add.u32 place, $5, $6;"
    " lop3.b32 place, stays, $3, place, 0xCA;"
    " max.NaN.bf16x2 larger, $2, $4;"
    " mov.b32 $0, larger; mov.b32 $1, place; }"
)
UNCLEAR_PAIR = tl.constexpr(
    "{ .reg .b32 zero, seen; mov.b32 zero, 0; and.b32 seen, $1, $2;"
    " fma.rn.bf16x2 $0, seen, zero, $3; }"
)


@triton.jit
def _wide(x, RULE: tl.constexpr):
    """x as float32, or as it is for pairs.

    bfloat16 is shifted as bits; the compiler would else compare in bfloat16.
    """
    if RULE == "pairs":
        wide = x
    elif x.dtype == tl.bfloat16:
        wide = (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        wide = x.to(tl.float32)
    return wide


@triton.jit
def _larger_of_pairs(largest, place, x, place_of_x, offset):
    if PLAIN:
        wide = tl.maximum(
            largest.to(tl.float32), x.to(tl.float32), propagate_nan=tl.PropagateNan.ALL
        )
        stays = x.to(tl.float32) <= largest.to(tl.float32)
        place = tl.where(stays, place, place_of_x + offset)
        largest = wide.to(tl.bfloat16)
    else:
        largest, place = tl.inline_asm_elementwise(
            LARGER_PAIR, "=r,=r,r,r,r,r,r", [largest, place, x, place_of_x, offset],
            dtype=(tl.bfloat16, tl.int16), is_pure=True, pack=2,
        )  # fmt: skip
    return largest, place


@triton.jit
def _larger(largest, place, x, place_of_x, OFFSET, RULE: tl.constexpr):
    """The larger of two values, and its place: the first of equal values, the last NaN.

    The place of x is OFFSET + `place_of_x`. By a rule other than "exact" the place of a NaN is
    arbitrary, which saves a comparison.
    """
    if RULE == "pairs":
        offset = tl.full(place.shape, 0, tl.int16) + OFFSET
        largest, place = _larger_of_pairs(largest, place, x, place_of_x, offset.to(tl.int16))
    else:
        place_of_x += OFFSET
        if RULE == "exact":
            place = tl.where((x > largest) | (x != x), place_of_x, place)
        else:
            place = tl.where(x <= largest, place, place_of_x)
        largest = tl.maximum(largest, x, propagate_nan=tl.PropagateNan.ALL)
    return largest, place


@triton.jit
def unclear_with(unclear, y, inside, RULE: tl.constexpr) -> tl.tensor:
    """`unclear`, or NaN where the maximum y of a window `inside` the map is NaN or infinite.

    Only "exact" knows the taps of such windows.
    """
    if RULE == "pairs" and not PLAIN:
        seen = tl.where(inside, -1, 0).to(tl.int16) + tl.zeros(y.shape, tl.int16)
        unclear = tl.inline_asm_elementwise(
            UNCLEAR_PAIR, "=r,r,r,r", [y, seen, unclear], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    elif RULE != "exact":
        seen = tl.where(inside, y.to(tl.float32), 0.0)
        unclear = tl.fma(seen, 0.0, unclear.to(tl.float32)).to(unclear.dtype)
    return unclear


@triton.jit
def nothing_unclear(w, c, RULE: tl.constexpr) -> tl.tensor:
    """The first `unclear`: zeros [BLOCK_W, BLOCK_C]."""
    return tl.zeros((w.shape[0], c.shape[1]), tl.bfloat16 if RULE == "pairs" else tl.float32)


@triton.jit
def is_unclear(unclear) -> tl.tensor:
    """Whether any maximum of a block is unclear."""
    wide = unclear.to(tl.float32)
    return tl.max(tl.max((wide != wide).to(tl.int32), 1), 0) > 0


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
def _max_of(columns, FIRST: tl.constexpr, NUM: tl.constexpr, RULE: tl.constexpr):
    """The largest of NUM columns from column FIRST on, and its index among them."""
    largest = _wide(columns[FIRST], RULE)
    place = tl.zeros(largest.shape, tl.int16 if RULE == "pairs" else tl.int32)
    for i in tl.static_range(1, NUM):
        first = tl.zeros_like(place)
        largest, place = _larger(largest, place, _wide(columns[FIRST + i], RULE), first, i, RULE)
    return largest, place


@triton.jit
def row_max(
    x_ptr, n, h, first_w, c, height, width, channels, pitch,
    KERNEL_W: tl.constexpr, DILATION_W: tl.constexpr, RULE: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """The largest value of row h in each window from column `first_w` on, and its tap's column."""
    if KERNEL_W <= UNROLLED:
        columns = _columns(
            x_ptr, n, h, first_w, c, height, width, channels, pitch, KERNEL_W, DILATION_W
        )
        largest, place = _max_of(columns, 0, KERNEL_W, RULE)
    else:
        columns = _columns(x_ptr, n, h, first_w, c, height, width, channels, pitch, 1, DILATION_W)
        largest, place = _max_of(columns, 0, 1, RULE)
        for tap in range(1, KERNEL_W):
            w = first_w + tap * DILATION_W
            columns = _columns(x_ptr, n, h, w, c, height, width, channels, pitch, 1, DILATION_W)
            first = tl.zeros_like(place)
            largest, place = _larger(largest, place, _wide(columns[0], RULE), first, tap, RULE)
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
    rows, x_ptr, n, first_h, first_w, c, height, width, channels, pitch,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, RULE: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """The largest value of each window and its tap; then the maxima of as many rows as `rows` has.

    The tap is that of the first of equal values, or of the last NaN. By a rule other than "exact"
    the taps of NaN and of -inf are arbitrary. Windows start at (first_h, first_w). `rows` are the
    maxima of their first rows, from `row_max`, of large windows of one; those that are returned are
    of their last rows. All loads of a small window are in flight together.
    """
    KNOWN: tl.constexpr = len(rows) // 2
    total, tap_of_max = rows[0], rows[1]
    if RULE == "exact":
        first_tap = _first_tap(first_h, first_w, KERNEL_W, DILATION_H, DILATION_W)
        tap_of_max = tl.where(total == float("-inf"), first_tap, tap_of_max)
    if KERNEL_H * KERNEL_W <= UNROLLED:
        columns = ()
        for tap in tl.static_range(KNOWN, KERNEL_H):
            h = first_h + tap * DILATION_H
            columns += _columns(
                x_ptr, n, h, first_w, c, height, width, channels, pitch, KERNEL_W, DILATION_W
            )
        for tap in tl.static_range(1, KERNEL_H):
            if tap >= KNOWN:
                rows += _max_of(columns, (tap - KNOWN) * KERNEL_W, KERNEL_W, RULE)
            total, tap_of_max = _larger(
                total, tap_of_max, rows[2 * tap], rows[2 * tap + 1], tap * KERNEL_W, RULE
            )
        rows = rows[len(rows) - 2 * KNOWN :]
    else:
        largest, column = rows[0], rows[1]
        for tap in range(1, KERNEL_H):
            h = first_h + tap * DILATION_H
            largest, column = row_max(
                x_ptr, n, h, first_w, c, height, width, channels, pitch, KERNEL_W, DILATION_W,
                RULE,
            )  # fmt: skip
            total, tap_of_max = _larger(total, tap_of_max, largest, column, tap * KERNEL_W, RULE)
        rows = (largest, column)
    return total, tap_of_max, rows

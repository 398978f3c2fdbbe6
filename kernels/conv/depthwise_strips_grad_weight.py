"""Gradients of depthwise filters: a thread goes down strips of rows of its channels.

It loads each row of a strip of both maps once, and holds the rows of dy that a row of x meets and
all sums of the filter.
"""

from functools import partial
from math import prod
from typing import Final

import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv

from ..language.channel_ranges import pitch_of
from ..norm.normalized_again import Normalized, normalizer_of, settings_of_normalizer
from .depthwise_runs import (
    StripTile,
    in_float32,
    load_run,
    made_columns,
    part_of,
    reaches,
    run_of,
    settings_of_runs,
    within_map,
)
from .depthwise_sums import DepthwisePlan, add_sums, block_of, pieces_of
from .grad_weight.program_steps import share_of
from .tiles import Pair

THREADS: Final = 128  # threads of a program
MOST_ROWS: Final = 11  # of a filter
STRIDED_TAPS: Final = 25  # taps of a filter of stride 2, at most; 0 leaves all to other kernels
MOST_STRIP: Final = 56  # rows of dy of a strip, at most and at least, unless the map has fewer
LEAST_STRIP: Final = 7
MULTIPROCESSORS: Final = 132  # of an H100 or H200, whose programs run side by side
ROWS_OF_START: Final = 2  # rows of a strip that take as long as its first loads
ROWS_OF_SUMS: Final = 3  # rows of a strip that take as long as adding a program's sums
UNITS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # samples of a unit
UNIT_ELEMENTS: Final = 1 << 24  # of a map, that a unit of more than 64 samples may have
WORSE: Final = 1.15  # a smaller unit may take so much longer than the largest


# By the most taps of a filter. Of few registers more programs run, which hide the latency of loads.
TILES: Final = {
    9: StripTile(8, 2, 3, 168),
    25: StripTile(7, 1, 2, 128),
    49: StripTile(7, 1, 2, 168),
    121: StripTile(5, 1, 1, 255),
}
# Of stride 2: for rows of more than MOST_NARROW outputs, and for others.
MOST_NARROW: Final = 14
STRIDED: Final = StripTile(7, 2, 1, 168), StripTile(7, 1, 1, 128)
MOST_AT_ONCE: Final = 3  # rows of a filter whose next rows are loaded without a loop's turn between


@triton.jit
def _add_row(
    sums, dy, x, PHASE: tl.constexpr, S: tl.constexpr, STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr, COLUMNS: tl.constexpr, OFFSET: tl.constexpr, DIL_W: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """The sums of all taps, with the products of a row of x by the rows of dy that meet it.

    Of several rows that enter with a row of dy this is number PHASE. It meets every STRIDE_Hth row
    of a filter, from that number on.
    """
    added = ()
    for tap in tl.static_range(len(sums)):
        total = sums[tap]
        if tap // S % STRIDE_H == PHASE:
            for t in tl.static_range(COLUMNS):
                if reaches(t * STRIDE_W + tap % S * DIL_W - OFFSET, len(x)):
                    met = x[t * STRIDE_W + tap % S * DIL_W - OFFSET]
                    total = tl.fma(dy[tap // S // STRIDE_H * COLUMNS + t], met, total)
        added += (total,)
    return added


@triton.jit
def _with_strip_ahead(
    sums, x_ptrs, dy_ptrs, at, coefficient, mask, top, stop, h, q, in_h, in_w, out_w,
    X_PITCH: tl.constexpr, DY_PITCH: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_W: tl.constexpr, DIL_W: tl.constexpr, COLUMNS: tl.constexpr, FIRST: tl.constexpr,
    COUNT: tl.constexpr, INNER: tl.constexpr, OUT_INNER: tl.constexpr, FUNCTION: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """The sums, with the products of a strip. A row is loaded ahead of the products of the last."""
    dtype: tl.constexpr = x_ptrs.dtype.element_ty
    HELD: tl.constexpr = (R + STRIDE_H - 1) // STRIDE_H  # rows of dy that a row of x meets
    zero = tl.zeros_like(sums[0])
    end = tl.minimum(h + (stop - 1 - top) * STRIDE_H + R, in_h)
    ptrs = x_ptrs + tl.minimum(tl.maximum(h, 0), in_h - 1) * (in_w * X_PITCH)
    next_x = load_run(ptrs, q * STRIDE_W, in_w, X_PITCH, None, FIRST, COUNT, INNER)
    ptrs = dy_ptrs + top * (out_w * DY_PITCH)
    next_dy = load_run(ptrs, q, out_w, DY_PITCH, mask, 0, COLUMNS, OUT_INNER)
    dy = in_float32(next_dy)
    for _ in tl.static_range((HELD - 1) * COLUMNS):
        dy += (zero,)
    if at is not None:
        x = made_columns(
            next_x, at, coefficient, mask, q * STRIDE_W, in_w, dtype, FUNCTION, FIRST,
            INNER
        )  # fmt: skip
    else:
        x = in_float32(next_x)
    for row in range(0, end - h, AT_ONCE * STRIDE_H):
        for k in tl.static_range(AT_ONCE * STRIDE_H):
            ahead = tl.minimum(tl.maximum(h + row + k + 1, 0), in_h - 1)
            ptrs = x_ptrs + ahead * (in_w * X_PITCH)
            next_x = load_run(ptrs, q * STRIDE_W, in_w, X_PITCH, None, FIRST, COUNT, INNER)
            if k % STRIDE_H == STRIDE_H - 1:
                p = top + row // STRIDE_H + k // STRIDE_H + 1
                ptrs, inside = dy_ptrs + p * (out_w * DY_PITCH), mask & (p < stop)
                next_dy = load_run(ptrs, q, out_w, DY_PITCH, inside, 0, COLUMNS, OUT_INNER)
            if (h + row + k >= 0) & (h + row + k < end):
                sums = _add_row(
                    sums, dy, x, k % STRIDE_H, S, STRIDE_H, STRIDE_W, COLUMNS,
                    PAD_W + FIRST, DIL_W
                )  # fmt: skip
            if k % STRIDE_H == STRIDE_H - 1:
                dy = in_float32(next_dy) + part_of(dy, 0, (HELD - 1) * COLUMNS)
            if at is not None:
                x = made_columns(
                    next_x, at, coefficient, mask, q * STRIDE_W, in_w, dtype, FUNCTION,
                    FIRST, INNER
                )  # fmt: skip
            else:
                x = in_float32(next_x)
    return sums


@triton.jit
def _with_strip(
    sums, x_ptrs, dy_ptrs, at, coefficient, mask, top, stop, h, q, in_h, in_w, out_w,
    X_PITCH: tl.constexpr, DY_PITCH: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    PAD_W: tl.constexpr, DIL_W: tl.constexpr, COLUMNS: tl.constexpr, FIRST: tl.constexpr,
    COUNT: tl.constexpr, INNER: tl.constexpr, OUT_INNER: tl.constexpr, FUNCTION: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """The sums, with the products of a strip of stride 1, whose loads the compiler moves ahead."""
    dtype: tl.constexpr = x_ptrs.dtype.element_ty
    dy = ()
    for _ in tl.static_range(R * COLUMNS):
        dy += (tl.zeros_like(sums[0]),)
    for row in range(0, stop - top + R - 1, AT_ONCE):
        for k in tl.static_range(AT_ONCE):
            p, at_row = top + row + k, h + row + k
            ptrs, inside = dy_ptrs + p * (out_w * DY_PITCH), mask & (p < stop)
            entering = load_run(ptrs, q, out_w, DY_PITCH, inside, 0, COLUMNS, OUT_INNER)
            dy = in_float32(entering) + part_of(dy, 0, (R - 1) * COLUMNS)
            inside = mask & (at_row >= 0) & (at_row < in_h) & (p < stop + R - 1)
            ptrs = x_ptrs + at_row * (in_w * X_PITCH)
            x = load_run(ptrs, q, in_w, X_PITCH, inside, FIRST, COUNT, INNER)
            if at is not None:
                x = made_columns(x, at, coefficient, inside, q, in_w, dtype, FUNCTION, FIRST, INNER)
            else:
                x = in_float32(x)
            sums = _add_row(sums, dy, x, 0, S, 1, 1, COLUMNS, PAD_W + FIRST, DIL_W)
    return sums


@triton.jit(
    do_not_specialize=[
        "first", "num_samples", "in_h", "in_w", "out_h", "out_w", "pad_h", "unit", "splits", "strip"
    ]
)  # fmt: skip
def _strips_grad_weight_kernel(
    x_ptr, dy_ptr, partials_ptr, source, coefficient, first, num_samples, in_h, in_w, out_h, out_w,
    groups, pad_h, unit, splits, strip, X_PITCH: tl.constexpr, DY_PITCH: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_W: tl.constexpr, DIL_W: tl.constexpr,
    COLUMNS: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr, INNER: tl.constexpr,
    OUT_INNER: tl.constexpr, FUNCTION: tl.constexpr, PIECES: tl.constexpr,
    AHEAD: tl.constexpr, AT_ONCE: tl.constexpr, ROWS: tl.constexpr, BLOCK_C: tl.constexpr,
    VALUES: tl.constexpr,
):  # fmt: skip
    """A program adds to the sums of BLOCK_C filters, one unit of samples after another.

    A step has a run of columns of one strip of ROWS samples. Channels behind those of the maps are
    others again. AHEAD, all rows of x that are loaded are rows of the map: only columns beside it
    and rows of dy need masks.
    """
    channels, strips, split = groups * VALUES, tl.cdiv(out_h, strip), tl.program_id(1)
    all_c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    c = tl.where(all_c < channels, all_c, all_c % VALUES)
    c = tl.max_contiguous(tl.multiple_of(c, VALUES), VALUES)[None, :]
    at = None
    if source is not None:
        at = normalizer_of(source, c, c < channels, channels)
    sums_ptrs = partials_ptr + ((split.to(tl.int64) * channels + all_c) * (R * S))[:, None]
    for unit_start in range(0, num_samples, unit):
        samples = tl.minimum(unit, num_samples - unit_start)
        blocks = tl.cdiv(samples, ROWS)
        start, share = share_of(split, splits, blocks * strips * tl.cdiv(out_w, COLUMNS))
        sums = ()
        for _ in tl.static_range(R * S):
            sums += (tl.zeros((ROWS, BLOCK_C), tl.float32),)
        for step in range(start, start + share):
            sample = step % blocks * ROWS + tl.arange(0, ROWS)[:, None]
            mask = (sample < samples) & (c < channels)
            sample = (unit_start + tl.minimum(sample, samples - 1)).to(tl.int64)
            top = step // blocks % strips * strip
            stop, q = tl.minimum(top + strip, out_h), step // (blocks * strips) * COLUMNS
            h = top * STRIDE_H - pad_h
            x_ptrs = x_ptr + (sample * in_h * in_w + q * STRIDE_W) * X_PITCH + c
            dy_ptrs = dy_ptr + (sample * out_h * out_w + q) * DY_PITCH + c
            if AHEAD:
                sums = _with_strip_ahead(
                    sums, x_ptrs, dy_ptrs, at, coefficient, mask, top, stop, h, q, in_h, in_w,
                    out_w, X_PITCH, DY_PITCH, R, S, STRIDE_H, STRIDE_W, PAD_W, DIL_W, COLUMNS,
                    FIRST, COUNT, INNER, OUT_INNER, FUNCTION, AT_ONCE
                )  # fmt: skip
            else:
                sums = _with_strip(
                    sums, x_ptrs, dy_ptrs, at, coefficient, mask, top, stop, h, q, in_h, in_w,
                    out_w, X_PITCH, DY_PITCH, R, S, PAD_W, DIL_W, COLUMNS,
                    FIRST, COUNT, INNER, OUT_INNER, FUNCTION, AT_ONCE
                )  # fmt: skip
        older = (first == 0) | (unit_start > 0)
        add_sums(sums_ptrs, sums, (all_c < channels)[:, None], older, R * S, PIECES)


def add_strips(
    x: Tensor, dy: Tensor, partials: Tensor, *, first: bool, stride: Pair, padding: Pair,
    dilation: int, made_by: Normalized | None,
) -> None:  # fmt: skip
    """`depthwise_conv2d_grad_weight` of adjacent rows of filters."""
    splits, channels, size_r, size_s, _ = partials.shape
    sides, size, block_c = (dy.shape[1], dy.shape[2]), (size_r, size_s), block_of(channels)
    plan, strip = plan_of_strips(sides, channels, size, stride)
    tile, maker = tile_of(sides[1], size, stride), settings_of_normalizer(made_by)
    along = (run_of(sides[1], most=tile.most), size_s, stride[1], 1, padding[1], dilation)
    runs = within_map(settings_of_runs(x.shape[2], sides[1], *along), x.shape[2], sides[1])
    _strips_grad_weight_kernel[(cdiv(channels, block_c), splits)](
        x, dy, partials, maker["source"], maker["coefficient"], int(first), x.shape[0],
        x.shape[1], x.shape[2], *sides, channels // tile.values, padding[0], plan.unit, splits,
        strip, X_PITCH=pitch_of(x), DY_PITCH=pitch_of(dy), R=size_r, STRIDE_H=stride[0], **runs,
        FUNCTION=maker["FUNCTION"], PIECES=pieces_of(size_r * size_s),
        AHEAD=stride != (1, 1) or size_r > MOST_AT_ONCE, AT_ONCE=tile.at_once,
        ROWS=rows_of(tile, block_c), BLOCK_C=block_c, VALUES=tile.values, num_warps=THREADS // 32,
        maxnreg=tile.registers,
    )  # fmt: skip


def plan_of_strips(
    sides: Pair, channels: int, size: Pair, stride: Pair
) -> tuple[DepthwisePlan, int]:
    """The plan for a gradient dy of these sides and filters of `size`, and the rows of a strip."""
    tile, block_c = tile_of(sides[1], size, stride), block_of(channels)
    most = max(1, tile.programs(THREADS) * MULTIPROCESSORS // cdiv(channels, block_c))
    runs, around = cdiv(sides[1], run_of(sides[1], most=tile.most)), (size[0] - 1) // stride[0]

    def steps(unit: int, strips: int) -> int:
        return cdiv(unit, rows_of(tile, block_c)) * strips * runs

    def cost(unit: int, strips: int) -> float:
        """Rows that a program loads for a sample, where adding its sums takes as long as some."""
        rows = (sides[0] + (strips - 1) * around) / strips + ROWS_OF_START
        return (cdiv(steps(unit, strips), most) * rows + ROWS_OF_SUMS) / unit

    cuts = range(cdiv(sides[0], MOST_STRIP), max(cdiv(sides[0], LEAST_STRIP), 1) + 1)
    units = [unit for unit in UNITS if unit <= 64 or unit * prod(sides) * channels <= UNIT_ELEMENTS]
    strips = min(cuts, key=partial(cost, units[-1]))
    unit = min(unit for unit in units if cost(unit, strips) <= WORSE * cost(units[-1], strips))
    number = steps(unit, strips)
    return DepthwisePlan(cdiv(number, cdiv(number, most)), unit), cdiv(sides[0], strips)


def rows_of(tile: StripTile, block_c: int) -> int:
    """Samples of a program that has `block_c` channels."""
    return max(1, THREADS * tile.values // block_c)


def tile_of(width: int, size: Pair, stride: Pair) -> StripTile:
    """How strips of rows of `width` outputs are computed for filters of `size` (h, w)."""
    if stride != (1, 1):
        return STRIDED[width <= MOST_NARROW]
    return next(tile for most, tile in TILES.items() if size[0] * size[1] <= most)


def sums_go_by_strips(channels: int, size: Pair, stride: Pair, dilation: Pair) -> bool:
    """Whether the weight's gradient of a layer with filters of `size` (h, w) is cut into strips."""
    if channels % 2 != 0 or dilation[0] != 1 or max(size) > MOST_ROWS:
        return False
    return stride == (1, 1) or (size[0] * size[1] <= STRIDED_TAPS and max(stride) <= 2)

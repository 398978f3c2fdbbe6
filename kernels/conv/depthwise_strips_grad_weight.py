"""Gradients of depthwise filters of stride 1: a thread goes down strips of rows of its channels.

It loads each row of a strip of both maps once. It holds as many rows of dy as a filter has, which
a row of x meets, and all sums of the filter.
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
from .depthwise_runs import load_columns, made_columns, run_of, settings_of_runs
from .depthwise_sums import DepthwisePlan, add_sums, block_of, pieces_of
from .grad_weight.program_steps import share_of
from .tiles import Pair

MOST_STRIP: Final = 28  # rows of dy of a strip, at most and at least, unless the map has fewer
LEAST_STRIP: Final = 7
PROGRAMS: Final = (396, 264)  # that run side by side on an H200: of few taps, and of many
ROWS_OF_SUMS: Final = 3  # rows of a strip that take as long as adding a program's sums
UNITS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # samples of a unit
UNIT_ELEMENTS: Final = 1 << 24  # of a map, that a unit of more than 64 samples may have
WORSE: Final = 1.15  # a smaller unit may take so much longer than the largest
UNROLLED: Final = 3  # rows of a filter whose rows of dy change places by renaming, not by moves
ITEMS: Final = 256  # strips times channels of a program: each of its 128 threads has two channels


@triton.jit
def _add_row(
    sums, dy, x, S: tl.constexpr, COLUMNS: tl.constexpr, OFFSET: tl.constexpr, DIL_W: tl.constexpr
) -> tl.tuple:
    """The sums of all taps, with the products of a row of x by the rows of dy that meet it."""
    added = ()
    for tap in tl.static_range(len(sums)):
        total = sums[tap]
        for t in tl.static_range(COLUMNS):
            met = x[t + tap % S * DIL_W - OFFSET]
            total = tl.fma(dy[tap // S * COLUMNS + t], met, total)
        added += (total,)
    return added


@triton.jit(
    do_not_specialize=[
        "first", "num_samples", "in_h", "in_w", "out_h", "out_w", "pad_h", "unit", "splits", "strip"
    ]
)  # fmt: skip
def _strips_grad_weight_kernel(
    x_ptr, dy_ptr, partials_ptr, source, coefficient, first, num_samples, in_h, in_w, out_h, out_w,
    eighths, pad_h, unit, splits, strip, X_PITCH: tl.constexpr, DY_PITCH: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr, PAD_W: tl.constexpr, DIL_W: tl.constexpr,
    COLUMNS: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr, INNER: tl.constexpr,
    OUT_INNER: tl.constexpr, FUNCTION: tl.constexpr, PIECES: tl.constexpr,
    AT_ONCE: tl.constexpr, ROWS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A program adds to the sums of BLOCK_C filters, one unit of samples after another."""
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    channels, strips, split = eighths * 8, tl.cdiv(out_h, strip), tl.program_id(1)
    all_c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    c = all_c[None, :]
    if source is not None:
        at = normalizer_of(source, c, c < channels, channels)
    sums_ptrs = partials_ptr + ((split.to(tl.int64) * channels + all_c) * (R * S))[:, None]
    for unit_start in range(0, num_samples, unit):
        items = tl.minimum(unit, num_samples - unit_start) * strips
        blocks = tl.cdiv(items, ROWS)
        start, share = share_of(split, splits, blocks * tl.cdiv(out_w, COLUMNS))
        sums = ()
        for _ in tl.static_range(R * S):
            sums += (tl.zeros((ROWS, BLOCK_C), tl.float32),)
        for step in range(start, start + share):
            item = step % blocks * ROWS + tl.arange(0, ROWS)[:, None]
            q = step // blocks * COLUMNS
            mask = (item < items) & (c < channels)
            sample, top = (unit_start + item // strips).to(tl.int64), item % strips * strip
            stop = tl.minimum(top + strip, out_h)
            x_ptrs = x_ptr + (sample * in_h * in_w + q) * X_PITCH + c
            dy_ptrs = dy_ptr + (sample * out_h * out_w + q) * DY_PITCH + c
            dy = ()
            for _ in tl.static_range(R * COLUMNS):
                dy += (tl.zeros((ROWS, BLOCK_C), tl.float32),)
            for i in range(0, strip + R - 1, AT_ONCE):
                for k in tl.static_range(AT_ONCE):
                    p, h = top + i + k, top - pad_h + i + k
                    ptrs, inside = dy_ptrs + p * out_w * DY_PITCH, mask & (p < stop)
                    row = load_columns(ptrs, q, out_w, DY_PITCH, inside, 0, COLUMNS, OUT_INNER)
                    for j in tl.static_range((R - 1) * COLUMNS):
                        row += (dy[j],)
                    dy = row
                    inside = mask & (h >= 0) & (h < in_h) & (p < stop + R - 1)
                    ptrs = x_ptrs + h * in_w * X_PITCH
                    x = load_columns(ptrs, q, in_w, X_PITCH, inside, FIRST, COUNT, INNER)
                    if source is not None:
                        x = made_columns(
                            x, at, coefficient, inside, q, in_w, dtype, FUNCTION, FIRST, INNER
                        )
                    sums = _add_row(sums, dy, x, S, COLUMNS, PAD_W + FIRST, DIL_W)
        older = (first == 0) | (unit_start > 0)
        add_sums(sums_ptrs, sums, (all_c < channels)[:, None], older, R * S, PIECES)


def add_strips(
    x: Tensor, dy: Tensor, partials: Tensor, *, first: bool, padding: Pair, dilation: int,
    made_by: Normalized | None,
) -> None:  # fmt: skip
    """`depthwise_conv2d_grad_weight` of stride 1 and adjacent rows of filters."""
    splits, channels, size_r, size_s, _ = partials.shape
    sides, size, block_c = (dy.shape[1], dy.shape[2]), (size_r, size_s), block_of(channels)
    plan, strip = plan_of_strips(sides, channels, size)
    columns = columns_of(sides[1], size)
    along = (columns, size_s, 1, 1, padding[1], dilation)
    runs, maker = settings_of_runs(x.shape[2], sides[1], *along), settings_of_normalizer(made_by)
    del runs["STRIDE_W"]
    _strips_grad_weight_kernel[(cdiv(channels, block_c), splits)](
        x, dy, partials, maker["source"], maker["coefficient"], int(first), x.shape[0],
        x.shape[1], x.shape[2], *sides, channels // 8, padding[0], plan.unit, splits, strip,
        X_PITCH=pitch_of(x), DY_PITCH=pitch_of(dy), R=size_r, **runs,
        FUNCTION=maker["FUNCTION"], PIECES=pieces_of(size_r * size_s),
        AT_ONCE=size_r if size_r <= UNROLLED else 1, ROWS=ITEMS // block_c, BLOCK_C=block_c,
        num_warps=4, maxnreg=registers_of(size),
    )  # fmt: skip


def plan_of_strips(sides: Pair, channels: int, size: Pair) -> tuple[DepthwisePlan, int]:
    """The plan for a gradient dy of these sides and filters of `size`, and the rows of a strip."""
    columns, block_c = columns_of(sides[1], size), block_of(channels)
    most = max(1, PROGRAMS[size[0] > UNROLLED] // cdiv(channels, block_c))

    def steps(unit: int, strips: int) -> int:
        return cdiv(unit * strips, ITEMS // block_c) * cdiv(sides[1], columns)

    def cost(unit: int, strips: int) -> float:
        """Rows that a program loads for a sample, where adding its sums takes as long as some."""
        rows = cdiv(sides[0], strips) + size[0] - 1
        return (cdiv(steps(unit, strips), most) * rows + ROWS_OF_SUMS) / unit

    cuts = range(cdiv(sides[0], MOST_STRIP), max(cdiv(sides[0], LEAST_STRIP), 1) + 1)
    units = [unit for unit in UNITS if unit <= 64 or unit * prod(sides) * channels <= UNIT_ELEMENTS]
    strips = min(cuts, key=partial(cost, units[-1]))
    unit = min(unit for unit in units if cost(unit, strips) <= WORSE * cost(units[-1], strips))
    number = steps(unit, strips)
    return DepthwisePlan(cdiv(number, cdiv(number, most)), unit), cdiv(sides[0], strips)


def columns_of(width: int, size: Pair) -> int:
    """Columns of a run."""
    return run_of(width, most=8 if size[0] <= UNROLLED else 7)


def registers_of(size: Pair) -> int:
    """Registers of a thread: of few taps three programs share a multiprocessor, else two."""
    return 168 if size[0] <= UNROLLED else 255

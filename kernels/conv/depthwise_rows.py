"""Depthwise convolutions of stride 1: a thread goes down the rows of a strip of its channels.

It loads each row of its run of columns once, ahead of the products of the row before, and adds the
products by each row of the filter to the sums of the outputs that the row meets. All weights and
these sums are in registers. Of 7x7 an output takes 60 instructions, of which 49 are products; where
each row of outputs loads all its rows of the map it takes 96 (sm_90a, Triton 3.9, 2026-11).
"""

from itertools import product
from typing import Final

import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv

from ..language.channel_ranges import pitch_of
from ..language.device import num_sms
from ..language.rounding import stored
from .depthwise_runs import (
    StripTile,
    add_row,
    in_float32,
    load_run,
    part_of,
    run_of,
    settings_of_runs,
    within_map,
)
from .tiles import Pair

THREADS: Final = 128  # threads of a program
# Taps of a filter: of fewer depthwise.py is as fast. Rows that are narrow take fewer: 3x3 is 7 to
# 20% faster @7 and @14, and takes 1.65 times as long for 72 channels @56 (H200, 2026-11-28).
LEAST_TAPS: Final = 10
LEAST_TAPS_NARROW: Final = 9
MOST_NARROW: Final = 14  # outputs of a row
MOST_ROWS: Final = 11  # of a filter
WIDTHS: Final = (64, 48, 32, 24, 16, 8)  # threads that have a pixel
LEAST_WIDTH: Final = 16  # channels that they have, at least: a sector of memory
LEAST_STRIP: Final = 7  # rows of a strip, unless the map has fewer
ROWS_OF_START: Final = 3  # rows that take as long as the first loads of a strip, and the weights'
ALONE: Final = 0.75  # of the time of all programs that fit, that one of them takes at least

# By the most taps of a filter. Two rows at once halve the moves of sums. For 7x7 one is 6 to 10%
# faster (H200, 2026-11-28), and more than two take a minute to compile.
TILES: Final = {
    9: StripTile(8, 2, 3, 128),
    25: StripTile(8, 2, 2, 168),
    49: StripTile(7, 2, 1, 255),
    81: StripTile(7, 1, 1, 255),
    121: StripTile(5, 1, 1, 255),
}


@triton.jit
def _zeros(COUNT: tl.constexpr, THREADS: tl.constexpr, VALUES: tl.constexpr) -> tl.tuple:
    zeros = ()
    for _ in tl.static_range(COUNT):
        zeros += (tl.zeros((THREADS, VALUES), tl.float32),)
    return zeros


@triton.jit(
    do_not_specialize=[
        "num_samples", "height", "width", "out_h", "out_w", "pad_h", "strip", "strips"
    ]
)  # fmt: skip
def _depthwise_rows_kernel(
    x_ptr, packed_ptr, bias_ptr, y_ptr, num_samples, height, width, out_h, out_w, groups, pad_h,
    strip, strips, X_PITCH: tl.constexpr, Y_PITCH: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr, PAD_W: tl.constexpr, DIL_W: tl.constexpr,
    COLUMNS: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr, INNER: tl.constexpr,
    OUT_INNER: tl.constexpr, FLIPPED: tl.constexpr, AT_ONCE: tl.constexpr,
    PRECISION: tl.constexpr, THREADS: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Output h sums taps r of input h - pad_h + r; columns likewise.

    A program has one strip of several samples. WIDTH threads have a pixel's channels, VALUES each,
    where WIDTH need not be a power of two. All rows that are loaded are rows of the map.
    """
    ROWS: tl.constexpr = THREADS // WIDTH
    pid, tiles_c, runs = tl.program_id(0), tl.cdiv(groups, WIDTH), tl.cdiv(out_w, COLUMNS)
    first = pid // tiles_c % runs * COLUMNS
    top = pid // (tiles_c * runs) % strips * strip
    stop = tl.minimum(top + strip, out_h)
    thread = tl.arange(0, THREADS)[:, None]
    sample = pid // (tiles_c * runs * strips) * ROWS + thread // WIDTH
    group = pid % tiles_c * WIDTH + thread % WIDTH
    mask = (thread < ROWS * WIDTH) & (sample < num_samples) & (group < groups)
    sample = tl.minimum(sample, num_samples - 1).to(tl.int64)
    channels = groups * VALUES
    c = tl.minimum(group, groups - 1) * VALUES + tl.arange(0, VALUES)[None, :]
    # from the first row of the map on, but all outputs end with a row, be it above the map
    h = tl.minimum(tl.maximum(top - pad_h, 0), top - pad_h + R - 1)
    x_ptr += (sample * height * width + first) * X_PITCH + c
    y_ptr += (sample * out_h * out_w + first) * Y_PITCH + c
    x_ptrs = x_ptr + tl.minimum(tl.maximum(h, 0), height - 1) * (width * X_PITCH)
    row = load_run(x_ptrs, first, width, X_PITCH, None, FIRST, COUNT, INNER)
    weights = ()
    for tap in tl.static_range(R * S):
        w = tl.load(packed_ptr + (R * S - 1 - tap if FLIPPED else tap) * channels + c)
        weights += (w.to(tl.float32),)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + c)
    sums = _zeros(R * COLUMNS, THREADS, VALUES)
    for start in range(h, stop - pad_h + R - 1, AT_ONCE):
        for k in tl.static_range(AT_ONCE):
            h = start + k
            x = in_float32(row)
            x_ptrs = x_ptr + tl.minimum(tl.maximum(h + 1, 0), height - 1) * (width * X_PITCH)
            row = load_run(x_ptrs, first, width, X_PITCH, None, FIRST, COUNT, INNER)
            if (h >= 0) & (h < height):
                sums = add_row(sums, x, weights, R, S, COLUMNS, PAD_W + FIRST, DIL_W)
            p = h + pad_h - (R - 1)
            if (p >= top) & (p < stop):
                y_ptrs = y_ptr + p * (out_w * Y_PITCH)
                for t in tl.static_range(COLUMNS):
                    inside = mask
                    if t >= OUT_INNER:
                        inside = inside & (first + t < out_w)
                    y = sums[(R - 1) * COLUMNS + t]
                    if bias_ptr is not None:
                        y += bias
                    y = stored(y, y_ptr.dtype.element_ty, PRECISION)
                    tl.store(y_ptrs + t * Y_PITCH, y, mask=inside)
            sums = _zeros(COLUMNS, THREADS, VALUES) + part_of(sums, 0, (R - 1) * COLUMNS)


def goes_by_rows(width: int, channels: int, size: Pair, stride: Pair, dilation: Pair) -> bool:
    """Whether threads go down the rows of a layer with filters of `size` (h, w).

    `width` are the outputs of a row.
    """
    plain = stride == (1, 1) and dilation[0] == 1 and channels % 2 == 0
    least = LEAST_TAPS_NARROW if width <= MOST_NARROW else LEAST_TAPS
    return plain and size[0] * size[1] >= least and max(size) <= MOST_ROWS


def convolve_rows(
    x: Tensor, packed: Tensor, bias: Tensor | None, y: Tensor, *,
    padding: Pair, dilation: int, precision: str, flipped: bool,
) -> None:  # fmt: skip
    """y [N, P, Q, C] = x [N, H, W, C] convolved with packed [R, S, C], plus bias, float32 [C].

    `dilation` is that of columns. A `flipped` filter has its last tap first.
    """
    (samples, out_h, out_w, channels), (size_r, size_s, _) = y.shape, packed.shape
    tile = next(tile for most, tile in TILES.items() if size_r * size_s <= most)
    columns, groups = run_of(out_w, most=tile.most), channels // tile.values
    width, strip = _cut_of(samples, out_h, groups, cdiv(out_w, columns), size_r, tile)
    along = (columns, size_s, 1, 1, padding[1], dilation)
    runs = within_map(settings_of_runs(x.shape[2], out_w, *along), x.shape[2], out_w)
    del runs["STRIDE_W"]
    tiles, strips = cdiv(out_w, columns) * cdiv(groups, width), cdiv(out_h, strip)
    _depthwise_rows_kernel[(cdiv(samples, THREADS // width) * strips * tiles,)](
        x, packed, bias, y, samples, x.shape[1], x.shape[2], out_h, out_w, groups, padding[0],
        strip, strips, X_PITCH=pitch_of(x), Y_PITCH=pitch_of(y), R=size_r, **runs,
        FLIPPED=flipped, AT_ONCE=tile.at_once, PRECISION=precision, THREADS=THREADS, WIDTH=width,
        VALUES=tile.values, num_warps=THREADS // 32, maxnreg=tile.registers,
    )  # fmt: skip


def _cut_of(
    samples: int, height: int, groups: int, runs: int, size_r: int, tile: StripTile
) -> Pair:
    """Threads that have a pixel, and rows of a strip: those that are predicted to take least."""
    together = tile.programs(THREADS)

    def cost(cut: Pair) -> float:
        """Rows that a multiprocessor computes, of programs of which some run side by side."""
        width, strips = cut
        programs = cdiv(samples, THREADS // width) * cdiv(groups, width) * runs * strips
        rounds, left = divmod(cdiv(programs, num_sms()), together)
        alone = max(left, ALONE * together) if left else 0
        rows = (height + (strips - 1) * (size_r - 1)) / strips + ROWS_OF_START
        return (rounds * together + alone) * rows

    widths = [width for width in WIDTHS if width * tile.values >= LEAST_WIDTH]
    cuts = range(1, max(height // max(size_r, LEAST_STRIP), 1) + 1)
    width, strips = min(product(widths, cuts), key=cost)
    return width, cdiv(height, strips)

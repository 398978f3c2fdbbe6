"""Moments of the cells of a depthwise convolution's output, which batch normalization merges.

A cell is a run of columns of the rows of a strip: what one thread of depthwise_strips.py makes. The
sums go along the runs of one row after the other, in that kernel and in this one, which reads a
stored map: their bits are alike.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv

from ..language.channel_ranges import pitch_of
from .batch_stats import MomentCells
from .depthwise_runs import run_of
from .tiles import Pair

MOST_STRIP: Final = 19  # rows of a strip, at most: with the two beside, steps of three rows
CELLS: Final = 4  # of a program
BLOCK_C: Final = 64  # channels of a program: each of its 128 threads has two


def cells_of(sides: Pair) -> MomentCells:
    """The cells of maps of these sides."""
    rows = cdiv(sides[0], cdiv(sides[0], MOST_STRIP))
    return MomentCells(sides, (1, rows, run_of(sides[1])), flat=False)


@triton.jit
def with_values(sums, y, inside) -> tl.tuple:
    """The value about which sums are taken, the sum and the sum of squares, with values y."""
    off = tl.where(inside, y - sums[0], 0.0)
    return sums[0], sums[1] + off, tl.fma(off, off, sums[2])


@triton.jit
def moments_of(sums, count) -> tl.tuple:
    """The mean of `count` values, and the sum of squares about it."""
    off = sums[1] / count
    return sums[0] + off, tl.maximum(tl.fma(off * off, -count, sums[2]), 0.0)


@triton.jit(do_not_specialize=["num_cells", "height", "width", "rows", "tiles_h", "tiles_w"])
def _cells_kernel(
    y_ptr, moments_ptr, num_cells, height, width, rows, tiles_h, tiles_w, eighths, pitch,
    COLUMNS: tl.constexpr, CELLS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    cell = tl.program_id(0) * CELLS + tl.arange(0, CELLS)[:, None]
    channels, c = eighths * 8, tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    mask = (cell < num_cells) & (c < channels)
    sample, first = (cell // (tiles_w * tiles_h)).to(tl.int64), cell % tiles_w * COLUMNS
    top = cell // tiles_w % tiles_h * rows
    stop = tl.minimum(top + rows, height)
    y_ptrs = y_ptr + ((sample * height + top) * width + first) * pitch + c
    zero = tl.zeros((CELLS, BLOCK_C), tl.float32)
    sums = (tl.load(y_ptrs, mask=mask, other=0.0).to(tl.float32), zero, zero)
    for row in range(rows):
        for t in tl.static_range(COLUMNS):
            inside = mask & (top + row < stop) & (first + t < width)
            y = tl.load(y_ptrs + t * pitch, mask=inside, other=0.0).to(tl.float32)
            sums = with_values(sums, y, inside)
        y_ptrs += width * pitch
    count = (stop - top) * tl.minimum(width - first, COLUMNS)
    mean, square = moments_of(sums, count.to(tl.float32))
    ptrs = moments_ptr + cell.to(tl.int64) * 2 * channels + c
    tl.store(ptrs, mean, mask=mask)
    tl.store(ptrs + channels, square, mask=mask)


def strip_moments(y: Tensor, moments: Tensor, *, cells: MomentCells) -> None:
    """The mean of each channel, and the squares about it, for each cell of y [n, P, Q, C].

    moments are float32 [n, cells of a map, 2, C], with C a multiple of 8. y is read once.
    """
    (samples, height, width, channels), (_, rows, columns) = y.shape, cells.box
    number, (_, tiles_h, tiles_w) = cells.count(samples), cells.tiles(samples)
    if number == 0:
        return
    _cells_kernel[(cdiv(number, CELLS), cdiv(channels, BLOCK_C))](
        y, moments, number, height, width, rows, tiles_h, tiles_w, channels // 8, pitch_of(y),
        COLUMNS=columns, CELLS=CELLS, BLOCK_C=BLOCK_C, num_warps=4,
    )  # fmt: skip


def strip_moments_reference(y: Tensor, moments: Tensor, *, cells: MomentCells) -> None:
    """Computes `strip_moments` in torch."""
    (_, height, width, _), (_, rows, columns) = y.shape, cells.box
    found = []
    for top in range(0, height, rows):
        for first in range(0, width, columns):
            values = y[:, top : top + rows, first : first + columns].double().flatten(1, 2)
            mean = values.mean(1)
            found.append(torch.stack((mean, (values - mean[:, None]).square().sum(1)), 1))
    moments.copy_(torch.stack(found, 1))

"""Gradient of a convolution's bias: sums over squares of pixels, and running sums of these.

A map whose sides are whole numbers of 8 or 4 pixels is cut into cells. A cell's sum adds quarter by
quarter: of every 2x2 values the pairs in a row, then the two pairs, and the same again of what that
gives. So a sum has the same bits wherever it is taken: in the epilogue that writes the map, or from
the gradient behind a 2x2 pooling, of whose windows each holds one value and three zeros.
"""

from dataclasses import dataclass
from typing import Final

import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv

from ..language.channel_ranges import pitch_of
from .grad_weight.split import share_of, turns_of
from .tiles import Pair, block_of

CELLS: Final = (8, 4)  # rows and columns; a sum of 16 bfloat16 pixels has an eighth of their bytes
SUMMED_PIXELS: Final = 16384  # of a unit, at least, where UNIT_SAMPLES allow
UNIT_SAMPLES: Final = 64
PROGRAMS: Final = 1056  # eight for each of an H200's multiprocessors: 3.8 TB/s, four 3.3
BLOCK_K: Final = 64  # 64 bfloat16 channels are one 128-byte line
BLOCK_PIXELS: Final = 128
BLOCK_CELLS: Final = 16  # cells are few: so a map of 224x224 pixels makes 49 splits
STAGES: Final = {BLOCK_PIXELS: 3, BLOCK_CELLS: 8}
SUMMED_NBYTES: Final = 32  # of a channel in a program that sums cells: 16 bytes a thread


@dataclass(frozen=True, slots=True)
class GradBiasPlan:
    """Running sums [splits, K], float32, of a map or of the sums over its cells.

    `cell` are the rows and columns of a cell, 1 where pixels are added. A launch after the first of
    a batch starts at a multiple of `unit` samples.
    """

    splits: int
    unit: int
    cell: int


def grad_bias_plan(sides: Pair, channels: int) -> GradBiasPlan:
    """For a gradient map of these sides (h, w)."""
    cell = next((cell for cell in CELLS if all(side % cell == 0 for side in sides)), 1)
    unit = _unit_of(sides[0] * sides[1])
    rows = unit * sides[0] * sides[1] // cell**2
    most = cdiv(PROGRAMS, cdiv(channels, BLOCK_K))
    return GradBiasPlan(min(cdiv(rows, _block_of(cell)), most), unit, cell)


def _unit_of(pixels: int) -> int:
    return block_of(cdiv(SUMMED_PIXELS, max(1, pixels)), 1, UNIT_SAMPLES)


def _block_of(cell: int) -> int:
    return BLOCK_PIXELS if cell == 1 else BLOCK_CELLS


@triton.jit
def _pixel(ptrs, mask):
    return tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _sum_of_2x2(ptrs, mask, row, column):
    top = _pixel(ptrs, mask) + _pixel(ptrs + column, mask)
    return top + (_pixel(ptrs + row, mask) + _pixel(ptrs + row + column, mask))


@triton.jit
def _sum_of_4x4(ptrs, mask, row, column):
    top = _sum_of_2x2(ptrs, mask, row, column) + _sum_of_2x2(ptrs + 2 * column, mask, row, column)
    ptrs += 2 * row
    return top + (
        _sum_of_2x2(ptrs, mask, row, column) + _sum_of_2x2(ptrs + 2 * column, mask, row, column)
    )


@triton.jit(do_not_specialize=["num_cells", "cells_h", "cells_w", "halves"])
def sum_cells_kernel(
    map_ptr, sums_ptr, num_cells, cells_h, cells_w, channels, pitch, halves,
    SIDE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
) -> None:  # fmt: skip
    """Sums of BLOCK_N cells of SIDE x SIDE pixels, each cell's in threads of its own.

    `halves` are 2: of an unrolled loop the loads would all come first, and registers spill.
    """
    cell = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    first = (cell // cells_w * SIDE * cells_w + cell % cells_w) * SIDE  # a cell's first pixel
    mask = (cell < num_cells)[:, None] & (offs_k < channels)[None, :]
    ptrs = map_ptr + first[:, None] * pitch + offs_k[None, :]
    row = cells_w * SIDE * pitch
    sums = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for _ in range(halves):
        beside = ptrs + SIDE // 2 * pitch
        if SIDE == 8:
            pair = _sum_of_4x4(ptrs, mask, row, pitch)
            pair += _sum_of_4x4(beside, mask, row, pitch)
        elif SIDE == 4:
            pair = _sum_of_2x2(ptrs, mask, row, pitch)
            pair += _sum_of_2x2(beside, mask, row, pitch)
        else:
            pair = _pixel(ptrs, mask) + _pixel(beside, mask)
        sums += pair
        ptrs += SIDE // 2 * row
    tl.store(sums_ptr + cell[:, None] * channels + offs_k[None, :], sums, mask=mask)


@triton.jit(do_not_specialize=["first", "num_samples", "pixels", "unit", "splits"])
def grad_bias_kernel(
    dy_ptr, partials_ptr, first, num_samples, pixels, channels, pitch, unit, splits,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """A step is a run of pixels of a unit of samples, summed before it is added."""
    split = tl.program_id(1)
    offs_k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    mask_k = offs_k < channels
    sum_ptrs = partials_ptr + split.to(tl.int64) * channels + offs_k
    acc = tl.load(sum_ptrs, mask=mask_k & (first == 0), other=0.0)
    start, share = share_of(split, splits, tl.cdiv(unit * pixels, BLOCK_P))
    last = tl.cdiv(num_samples % unit * pixels, BLOCK_P)
    rows = num_samples.to(tl.int64) * pixels
    for turn in tl.range(0, turns_of(start, share, unit, num_samples, last), num_stages=STAGES):
        offs_p = (start + turn % share) * BLOCK_P + tl.arange(0, BLOCK_P)  # of the unit
        row = (turn // share * unit).to(tl.int64) * pixels + offs_p
        mask = ((offs_p < unit * pixels) & (row < rows))[:, None] & mask_k[None, :]
        dy = tl.load(dy_ptr + row[:, None] * pitch + offs_k[None, :], mask=mask, other=0.0)
        acc += tl.sum(dy.to(tl.float32), 0)
    tl.store(sum_ptrs, acc, mask=mask_k)


def sum_cells(maps: Tensor, sums: Tensor) -> None:
    """Sums [N, P, Q, K], float32, of the cells of maps [N, P * side, Q * side, K].

    A cell has 2, 4 or 8 rows and as many columns.
    """
    if sums.numel() == 0:
        return
    num_samples, cells_h, cells_w, channels = sums.shape
    num_cells, block_n = num_samples * cells_h * cells_w, SUMMED_NBYTES // maps.element_size()
    sum_cells_kernel[(cdiv(num_cells, block_n), cdiv(channels, BLOCK_K))](
        maps, sums, num_cells, cells_h, cells_w, channels, pitch_of(maps), 2,
        SIDE=side_of(maps, sums), BLOCK_N=block_n, BLOCK_K=BLOCK_K, num_warps=4,
    )  # fmt: skip


def conv2d_grad_bias(rows: Tensor, partials: Tensor, *, first: bool, cell: int) -> None:
    """Add the sums of rows [N, P, Q, K] to running ones, float32 [splits, K].

    `rows` are a gradient map, or the sums over its cells. `first` starts new sums.
    """
    if rows.numel() == 0:
        return
    num_samples, height, width, channels = rows.shape
    splits, block_p = partials.shape[0], _block_of(cell)
    unit = _unit_of(height * width * cell**2)
    grad_bias_kernel[(cdiv(channels, BLOCK_K), splits)](
        rows, partials, int(first), num_samples, height * width, channels, pitch_of(rows),
        unit, splits, BLOCK_P=block_p, BLOCK_K=BLOCK_K, STAGES=STAGES[block_p], num_warps=4,
    )  # fmt: skip


def sum_cells_reference(maps: Tensor, sums: Tensor) -> None:
    """Plain `sum_cells`, to the same bits."""
    total = maps.float()
    while total.shape != sums.shape:
        pairs = total[:, :, 0::2] + total[:, :, 1::2]
        total = pairs[:, 0::2] + pairs[:, 1::2]
    sums.copy_(total)


def conv2d_grad_bias_reference(rows: Tensor, partials: Tensor, *, first: bool, cell: int) -> None:
    """Plain `conv2d_grad_bias`; its splits but the first hold zeros."""
    if first:
        partials.zero_()
    for sample in rows:
        partials[0] += sample.float().sum((0, 1))


def side_of(maps: Tensor, sums: Tensor) -> int:
    """Rows and columns of the cells that sums are of."""
    side = maps.shape[1] // sums.shape[1]
    assert maps.shape[1:3] == (side * sums.shape[1], side * sums.shape[2])
    return side

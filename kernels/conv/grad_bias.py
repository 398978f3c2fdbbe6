"""Gradient of a convolution's bias: sums over square cells of pixels, and running sums of these.

A map whose sides are multiples of 8 or of 4 pixels is divided into cells. A cell is summed by
quarters: pairs of columns are added, then pairs of rows, and the result is summed in the same way.
A sum therefore has the same bits in the epilogue that writes the map, in a pass of its own, and
from the gradient of a 2x2 pooling, whose windows have one value and three zeros each.
"""

from dataclasses import dataclass
from typing import Final

import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv

from ..language.channel_ranges import pitch_of
from .grad_weight.program_steps import share_of, steps_of
from .tiles import Pair, block_of

CELLS: Final = (8, 4)  # sides of cells; the sum of 16 bfloat16 pixels has an eighth of their bytes
SUMMED_PIXELS: Final = 16384  # pixels of a unit, at least, where UNIT_SAMPLES allow
UNIT_SAMPLES: Final = 64  # samples of a unit, at most
# Programs that add to running sums: eight for each multiprocessor read 3.8 TB/s, four 3.3 TB/s
# (H200, 2026-11).
PROGRAMS: Final = 1056
BLOCK_K: Final = 64  # 64 bfloat16 channels are one 128-byte line
BLOCK_PIXELS: Final = 128  # pixels of a step
BLOCK_CELLS: Final = 16  # cells of a step: few, so that a map of 224x224 pixels has 49 splits
STAGES: Final = {BLOCK_PIXELS: 3, BLOCK_CELLS: 8}
SUMMED_NBYTES: Final = 32  # bytes of a channel in a program that sums cells: 16 bytes a thread


@dataclass(frozen=True, slots=True)
class GradBiasPlan:
    """The running sums of a bias gradient: float32 [splits, K]."""

    splits: int
    unit: int  # every launch of a batch after the first must start at a multiple of these samples
    cell: int  # rows and columns of a cell, or 1 where the pixels themselves are added


def grad_bias_plan(sides: Pair, channels: int) -> GradBiasPlan:
    """The plan for a gradient map of sides (h, w)."""
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
    """A program sums BLOCK_N cells of SIDE x SIDE pixels. Each cell has threads of its own.

    `halves` is 2. As a constant the loop would be unrolled, all loads would come first, and
    registers would spill.
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
    """A program adds its share of the steps of each unit. A step is BLOCK_P pixels of a unit."""
    split = tl.program_id(1)
    offs_k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    mask_k = offs_k < channels
    sum_ptrs = partials_ptr + split.to(tl.int64) * channels + offs_k
    acc = tl.load(sum_ptrs, mask=mask_k & (first == 0), other=0.0)
    start, share = share_of(split, splits, tl.cdiv(unit * pixels, BLOCK_P))
    last = tl.cdiv(num_samples % unit * pixels, BLOCK_P)
    rows = num_samples.to(tl.int64) * pixels
    for i in tl.range(0, steps_of(start, share, unit, num_samples, last), num_stages=STAGES):
        offs_p = (start + i % share) * BLOCK_P + tl.arange(0, BLOCK_P)  # of the unit
        row = (i // share * unit).to(tl.int64) * pixels + offs_p
        mask = ((offs_p < unit * pixels) & (row < rows))[:, None] & mask_k[None, :]
        dy = tl.load(dy_ptr + row[:, None] * pitch + offs_k[None, :], mask=mask, other=0.0)
        acc += tl.sum(dy.to(tl.float32), 0)
    tl.store(sum_ptrs, acc, mask=mask_k)


def sum_cells(maps: Tensor, sums: Tensor) -> None:
    """sums [N, P, Q, K], float32, = the sums of the cells of maps [N, P * side, Q * side, K].

    The side of a cell is 2, 4 or 8 pixels. Maps may be channel ranges.
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
    """Add the sums of rows [N, P, Q, K] to running sums, float32 [splits, K].

    `rows` are a gradient map where `cell` is 1, else the sums of its cells. `first` starts new
    sums.
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
    """Computes `sum_cells` in torch, to the same bits."""
    total = maps.float()
    while total.shape != sums.shape:
        pairs = total[:, :, 0::2] + total[:, :, 1::2]
        total = pairs[:, 0::2] + pairs[:, 1::2]
    sums.copy_(total)


def conv2d_grad_bias_reference(rows: Tensor, partials: Tensor, *, first: bool, cell: int) -> None:
    """Computes `conv2d_grad_bias` in torch. All splits but the first hold zeros."""
    if first:
        partials.zero_()
    for sample in rows:
        partials[0] += sample.float().sum((0, 1))


def side_of(maps: Tensor, sums: Tensor) -> int:
    """Rows and columns of the cells of maps that `sums` are sums of."""
    side = maps.shape[1] // sums.shape[1]
    assert maps.shape[1:3] == (side * sums.shape[1], side * sums.shape[2])
    return side

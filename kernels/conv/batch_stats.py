"""Moments of the cells of a convolution's output, which batch normalization merges.

A cell is a box of pixels that the convolution kernel stores at a time. The kernel also stores every
channel's mean over the box and the sum of squares about it. Boxes are counted from the first sample
of a launch. Launches that start at whole cells therefore give the same moments.
"""

from dataclasses import dataclass, replace
from math import gcd
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv

from ..language.channel_ranges import is_aligned, pitch_of
from .bands import filter_of, packed_channels
from .tiles import (
    FEW_CHANNELS,
    Box,
    Filter,
    Pair,
    Tile,
    box_of,
    box_tile,
    fits_specialized,
    im2col_tile,
    part_of,
    specialized_tile,
    step_channels,
)
from .windows_tile import windows_tile

MERGED: Final = {"BLOCK_P": 64, "BLOCK_C": 32, "num_warps": 4}  # cells, channels
BLOCK_C: Final = 32  # channels of a program that finds moments in a stored map
SIZES: Final = (
    "num_samples", "height", "width", "tiles_h", "tiles_w", "block_n", "block_h", "block_w",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MomentCells:
    """Maps divided into cells, boxes of samples, rows and columns."""

    sides: Pair  # height and width of the maps
    box: Box
    flat: bool  # whether the pixels of all samples count as one row

    @property
    def group(self) -> int:
        """The least number of samples, a power of two, that consists of whole cells."""
        if self.flat:
            return self.box[2] // gcd(self.box[2], self.sides[0] * self.sides[1])
        return self.box[0]

    def shape(self, samples: int, channels: int) -> tuple[int, int, int, int]:
        """The shape of the moments: [groups, cells of a group, 2, C]."""
        return cdiv(samples, self.group), self.count(self.group), 2, channels

    def extent(self, samples: int) -> tuple[int, int, int]:
        """Samples, rows and columns of that many maps."""
        height, width = self.sides
        return (1, 1, samples * height * width) if self.flat else (samples, height, width)

    def tiles(self, samples: int) -> tuple[int, int, int]:
        """Cells along each of the extent's sides."""
        samples, height, width = map(cdiv, self.extent(samples), self.box)
        return samples, height, width

    def count(self, samples: int) -> int:
        """Number of cells of that many maps."""
        tiles = self.tiles(samples)
        return tiles[0] * tiles[1] * tiles[2]


def moment_cells(
    in_sides: Pair, out_sides: Pair, shape: tuple[int, int, int, int], *,
    stride: Pair, padding: Pair, dilation: Pair, groups: int,
    dtype: torch.dtype, precision: str = "ieee", pitches: Pair | None = None,
) -> MomentCells | None:  # fmt: skip
    """The cells of a forward convolution with a weight of `shape` [K, C/g, R, S] on Hopper.

    `pitches` are the channels from one pixel to the next of its input and output, by default their
    own.

    None where its kernel on Hopper stores no moments. On other GPUs `cell_moments` finds the
    moments of the same cells in the stored map.
    """
    out_channels, in_width, *size = shape
    channels = in_width * groups, out_channels
    band = packed_channels(channels, groups, dtype, precision)
    taps = filter_of(
        channels, groups, band, size=(size[0], size[1]), stride=stride, padding=padding,
        dilation=dilation,
    )  # fmt: skip
    exact = dtype == torch.float32 and precision == "ieee"
    in_aligned, out_aligned = (
        is_aligned(*each, dtype.itemsize)
        for each in zip((in_sides, out_sides), channels, pitches or channels, strict=True)
    )
    whole = groups == 1 or band % step_channels(dtype) == 0
    if not (taps.suits_tiles and whole and out_aligned) or exact:
        return None
    windows = windows_tile(taps, dtype, precision, in_sides[1])
    if windows is not None:
        return MomentCells(out_sides, windows.pixels(windows.box(*out_sides)), False)
    if taps.in_channels < FEW_CHANNELS:
        tile = im2col_tile(taps)
        return MomentCells(out_sides, part_of(box_of(*out_sides, tile.pixels), tile.parts), False)
    if not in_aligned or out_channels < FEW_CHANNELS:
        return None
    one_by_one = taps.size == (1, 1) and taps.padding == (0, 0)
    if one_by_one or stride == (1, 1):
        flat = one_by_one and stride == (1, 1)
        return _cells_at_stride_1(out_sides, replace(taps, stride=(1, 1)), dtype, flat)
    box = box_of(*out_sides, specialized_tile(taps, dtype).pixels)
    even = in_sides[0] % 2 == 0 and in_sides[1] % 2 == 0
    many = out_channels >= 2 * FEW_CHANNELS
    fits = many and even and fits_specialized(taps, dtype, box, pooled=False)
    if stride != (2, 2) or not fits:
        return None
    return MomentCells(out_sides, box, flat=False)


def _cells_at_stride_1(sides: Pair, taps: Filter, dtype: torch.dtype, flat: bool) -> MomentCells:
    def box(tile: Tile) -> Box:
        return (1, 1, tile.pixels) if flat else box_of(*sides, tile.pixels)

    whole = box(specialized_tile(taps, dtype))
    if fits_specialized(taps, dtype, whole, pooled=False):
        return MomentCells(sides, whole, flat)
    tile = box_tile(taps, dtype, masked=False, pooled=False)
    return MomentCells(sides, part_of(box(tile), tile.parts), flat)


@triton.jit
def inside_box(
    n, h, w, num_samples, height, width,
    BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Which pixels [BLOCK_N * BLOCK_H * BLOCK_W] of the box at (n, h, w) lie in the maps."""
    pixel = tl.arange(0, BLOCK_N * BLOCK_H * BLOCK_W)
    inside = n + pixel // (BLOCK_H * BLOCK_W) < num_samples
    inside &= h + pixel // BLOCK_W % BLOCK_H < height
    return inside & (w + pixel % BLOCK_W < width)


@triton.jit
def pixels_inside(n, h, w, num_samples, height, width, block_n, block_h, block_w) -> tl.tensor:
    """Number of pixels of the box at (n, h, w) that lie in the maps."""
    rows = tl.minimum(tl.maximum(height - h, 0), block_h)
    columns = tl.minimum(tl.maximum(width - w, 0), block_w)
    return tl.minimum(tl.maximum(num_samples - n, 0), block_n) * rows * columns


@triton.jit(do_not_specialize=SIZES[:5])
def cell_moments_kernel(
    map_ptr, moments_ptr, num_samples, height, width, tiles_h, tiles_w, channels, pitch,
    BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr,
) -> None:  # fmt: skip
    """A program finds the moments of BLOCK_C channels of one cell."""
    cell = tl.program_id(0)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    n = cell // (tiles_w * tiles_h) * BLOCK_N
    h = cell // tiles_w % tiles_h * BLOCK_H
    w = cell % tiles_w * BLOCK_W
    pixel = tl.arange(0, BLOCK_N * BLOCK_H * BLOCK_W)
    sample = (n + pixel // (BLOCK_H * BLOCK_W)).to(tl.int64)
    row = (sample * height + h + pixel // BLOCK_W % BLOCK_H) * width + w + pixel % BLOCK_W
    inside = inside_box(n, h, w, num_samples, height, width, BLOCK_N, BLOCK_H, BLOCK_W)
    mask = inside[:, None] & (c < channels)[None, :]
    x = tl.load(map_ptr + row[:, None] * pitch + c[None, :], mask=mask, other=0.0).to(tl.float32)
    count = pixels_inside(n, h, w, num_samples, height, width, BLOCK_N, BLOCK_H, BLOCK_W)
    mean = tl.sum(x, 0) / count.to(tl.float32)
    off = tl.where(mask, x - mean[None, :], 0.0)
    ptrs = moments_ptr + cell.to(tl.int64) * 2 * channels + c
    tl.store(ptrs, mean, mask=c < channels)
    tl.store(ptrs + channels, tl.sum(off * off, 0), mask=c < channels)


@triton.jit
def _load_cells(
    moments_ptr, p, last, c, channels,
    num_samples, height, width, tiles_h, tiles_w, block_n, block_h, block_w,
):  # fmt: skip
    """Pixels [BLOCK_P, 1], means and squares [BLOCK_P, BLOCK_C] of cells p before `last`."""
    n = p // (tiles_w * tiles_h) * block_n
    h = p // tiles_w % tiles_h * block_h
    w = p % tiles_w * block_w
    count = pixels_inside(n, h, w, num_samples, height, width, block_n, block_h, block_w)
    count = tl.where(p < last, count, 0).to(tl.float32)[:, None]
    mask = (p < last)[:, None] & (c < channels)[None, :]
    ptrs = moments_ptr + p.to(tl.int64)[:, None] * 2 * channels + c[None, :]
    means = tl.load(ptrs, mask=mask, other=0.0)
    return count, means, tl.load(ptrs + channels, mask=mask, other=0.0)


@triton.jit(do_not_specialize=[*SIZES, "cells", "per_group"])
def merge_cells_kernel(
    moments_ptr, partials_ptr, cells, per_group, channels, pitch,
    num_samples, height, width, tiles_h, tiles_w, block_n, block_h, block_w,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
) -> None:  # fmt: skip
    """A program merges the cells of one group. Sums are about the mean of its first cells."""
    group = tl.program_id(0)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    p = group * per_group + tl.arange(0, BLOCK_P)
    last = tl.minimum(cells, (group + 1) * per_group)
    count, means, squares = _load_cells(
        moments_ptr, p, last, c, channels,
        num_samples, height, width, tiles_h, tiles_w, block_n, block_h, block_w,
    )  # fmt: skip
    about = tl.sum(means * count, 0) / tl.sum(count)
    off = means - about[None, :]
    sums = count * off
    squares = tl.fma(sums, off, squares)
    counts = count
    for first in range(BLOCK_P, per_group, BLOCK_P):
        count, means, more = _load_cells(
            moments_ptr, first + p, last, c, channels,
            num_samples, height, width, tiles_h, tiles_w, block_n, block_h, block_w,
        )  # fmt: skip
        off = means - about[None, :]
        sums = tl.fma(count, off, sums)
        squares += tl.fma(count * off, off, more)
        counts += count
    total = tl.sum(counts)
    off = tl.sum(sums, 0) / total
    square = tl.maximum(tl.sum(squares, 0) - off * off * total, 0.0)
    ptrs = partials_ptr + group.to(tl.int64) * 2 * pitch + c
    tl.store(ptrs, about + off, mask=c < channels)
    tl.store(ptrs + pitch, square, mask=c < channels)


def cell_moments(maps: Tensor, moments: Tensor, *, cells: MomentCells) -> None:
    """The mean of every channel, and the squares about it, for each cell of maps [n, H, W, C].

    moments are float32 [ceil(n / group), cells of a group, 2, C]. Moments beyond the last map's
    cells are not written. Maps may be channel ranges. They are read once.
    """
    if maps.numel() == 0:
        return
    samples, channels = maps.shape[0], maps.shape[3]
    cell_moments_kernel[(cells.count(samples), cdiv(channels, BLOCK_C))](
        maps, moments, *cells.extent(samples), *cells.tiles(samples)[1:], channels, pitch_of(maps),
        BLOCK_N=cells.box[0], BLOCK_H=cells.box[1], BLOCK_W=cells.box[2],
        BLOCK_C=BLOCK_C, num_warps=8,
    )  # fmt: skip


def merge_cells(moments: Tensor, partials: Tensor, *, samples: int, cells: MomentCells) -> None:
    """Merge the moments of cells to those of each group of `samples` maps.

    partials are those of `batch_norm_moments`, float32 [ceil(samples / group), 1, 2, C]. They may
    be channel ranges.
    """
    groups, per_group, _, channels = moments.shape
    merge_cells_kernel[(groups, cdiv(channels, MERGED["BLOCK_C"]))](
        moments, partials, cells.count(samples), per_group, channels, partials.stride(2),
        *cells.extent(samples), *cells.tiles(samples)[1:], *cells.box, **MERGED,
    )  # fmt: skip


def cell_moments_reference(maps: Tensor, moments: Tensor, *, cells: MomentCells) -> None:
    """Computes `cell_moments` in torch."""
    values, inside = _by_cell(maps.double(), cells)
    count = inside.sum(1)
    mean = values.sum(1) / count
    squares = ((values - mean[:, None]) * inside).square().sum(1)
    moments.view(-1, *moments.shape[2:])[: len(mean)] = torch.stack((mean, squares), 1).float()


def _by_cell(maps: Tensor, cells: MomentCells) -> tuple[Tensor, Tensor]:
    """Maps by cell [cells, pixels, C], 0 outside the maps, and 1 inside them [cells, pixels, 1]."""
    extent, tiles = cells.extent(maps.shape[0]), cells.tiles(maps.shape[0])
    covered = [count * side for count, side in zip(tiles, cells.box, strict=True)]
    room = maps.new_zeros(*covered, maps.shape[3] + 1)
    whole = room[tuple(map(slice, extent))]
    whole[..., :-1], whole[..., -1] = maps.reshape(*extent, -1), 1.0
    cut = room.unflatten(2, (-1, cells.box[2])).unflatten(1, (-1, cells.box[1]))
    cut = cut.unflatten(0, (-1, cells.box[0])).permute(0, 2, 4, 1, 3, 5, 6)
    by_cell = cut.flatten(0, 2).flatten(1, 3)
    return by_cell[..., :-1], by_cell[..., -1:]


def merge_cells_reference(
    moments: Tensor, partials: Tensor, *, samples: int, cells: MomentCells
) -> None:
    """Computes `merge_cells` in torch."""
    ones = moments.new_ones(1).expand(samples, *cells.sides, 1)
    counts = _by_cell(ones.double(), cells)[1].sum(1)
    found = moments.view(-1, *moments.shape[2:])[: len(counts)].double()
    for group, part in enumerate(found.split(moments.shape[1])):
        means, squares = part.unbind(1)
        count = counts[group * moments.shape[1] :][: len(part)]
        mean = (count * means).sum(0) / count.sum()
        partials[group, 0, 0] = mean
        partials[group, 0, 1] = (squares + count * (means - mean).square()).sum(0)

"""Tiles of the forward and data-gradient kernels: what a program computes, and how it is run.

They depend on a layer's sizes, dtype and precision and on the GPU, never on the number of samples.
What tuning found for a launch takes their place (configurations.py).
Times behind the choices: VGG-16's layers, H200, 2026-11.
"""

import functools
from dataclasses import dataclass, replace
from typing import Final

import torch
import triton
from torch import Tensor

from ..language.channel_ranges import pitch_of
from ..language.device import capability, holds_large_tiles, shared_nbytes
from ..language.gluon import available, widens

Pair = tuple[int, int]
Box = tuple[int, int, int]

FEW_CHANNELS: Final = 16  # below it, taps and channels are joined into one axis
STEP_NBYTES: Final = 128  # of channels in one step of a sum: a line, and TMA's widest swizzle
MOST_BOX_SAMPLES: Final = 64
SINGLE_THREAD_COLUMNS: Final = 8  # of a box, from which a thread holds whole windows 2x2
MOST_JOINED: Final = 32  # taps and channels in one step: more take too many registers
ROWS_STAGES: Final = 3  # of rows that taps share, where specialised warps load them
ROWS_PACKED_STAGES: Final = 2  # of their weights
LONG_SUM: Final = 36  # steps of a sum from which tiles gain nothing by overlapping
LONG_FLOAT32_SUM: Final = 128  # from which one large tile beats two on a multiprocessor


@dataclass(frozen=True, slots=True)
class Filter:
    """Geometry of a convolution's taps, (h, w); channels are those of one group."""

    size: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int
    in_channels: int
    out_channels: int

    @property
    def num_taps(self) -> int:
        return self.size[0] * self.size[1]


@dataclass(frozen=True, slots=True)
class Tile:
    """Shape of a program's work, [pixels, output channels, input channels], and how it is run."""

    pixels: int
    out_channels: int
    in_channels: int
    num_warps: int
    num_stages: int
    flatten: bool = True  # a persistent program's tiles and steps run as one loop
    parts: int = 1  # in which the outputs leave
    residents: int = 1  # persistent programs that share a multiprocessor


def block_of(size: int, least: int, most: int) -> int:
    """The power of two that covers a size, within bounds that are themselves such."""
    return min(most, max(least, triton.next_power_of_2(size)))


def step_channels(dtype: torch.dtype) -> int:
    return STEP_NBYTES // dtype.itemsize


def fitting_stages(num_bytes: int, most: int) -> int:
    """Stages of this many bytes that shared memory holds, at least 2."""
    return max(2, min(most, shared_nbytes() // num_bytes))


def pointer_tile(taps: Filter, dtype: torch.dtype, precision: str, *, pooled: bool) -> Tile:
    """For the forward pass and the data gradient by pointers."""
    few = taps.in_channels < FEW_CHANNELS
    step = taps.num_taps * taps.in_channels if few else taps.in_channels
    if dtype == torch.float32 and precision == "ieee":
        return Tile(64, block_of(taps.out_channels, 16, 64), block_of(step, 16, 32), 8, 2)
    # ptxas serializes the products of a float32 tile of 128x128 by 8 warps (triton 3.6, sm_90a).
    out_channels = block_of(taps.out_channels, 16, 64 if dtype == torch.float32 else 128)
    in_channels = block_of(step, 16, step_channels(dtype))
    num_stages = fitting_stages((128 + out_channels) * STEP_NBYTES, 3)
    if few and step <= in_channels:
        num_stages = 1
    wide = (out_channels == 128 and not pooled) or (0, 0) < capability() < (9, 0)
    return Tile(128, out_channels, in_channels, 8 if wide else 4, num_stages)


def box_tile(taps: Filter, dtype: torch.dtype, *, masked: bool, pooled: bool) -> Tile:
    """For the forward pass and the data gradient by boxes."""
    widest = step_channels(dtype)
    in_channels = widest if taps.in_channels % widest == 0 else widest // 2
    wide = taps.out_channels > 64
    steps = taps.num_taps * taps.in_channels // in_channels
    if not holds_large_tiles():
        return _small_box_tile(in_channels, wide, masked, pooled)
    if dtype == torch.float32:
        tile = _float32_box_tile(in_channels, wide, steps, masked, pooled)
    else:
        tile = _bfloat16_box_tile(in_channels, wide, steps, masked, pooled)
    if capability() >= (10, 0):
        num_stages = max(2, tile.num_stages - 1)  # accumulators leave through shared memory as well
        return replace(tile, num_stages=num_stages)
    return tile


def _small_box_tile(in_channels: int, wide: bool, masked: bool, pooled: bool) -> Tile:
    """For GPUs with 99 KiB of shared memory a program and TMA, those of compute capability 12.0."""
    parts = 1 if pooled else 4 if masked else 2
    return Tile(128, 128 if wide and not pooled else 64, in_channels, 8, 2, parts=parts)


def _bfloat16_box_tile(
    in_channels: int, wide: bool, steps: int, masked: bool, pooled: bool
) -> Tile:
    """128->128 @112, masked: 1.77 ms by two programs that fill each other's gaps, else 1.80."""
    flatten = steps < LONG_SUM
    if wide and masked:
        return Tile(128, 128, in_channels, 4, 3, False, parts=4, residents=2)
    if wide:
        return Tile(256, 128, in_channels, 8, 3 if pooled else 4, flatten, parts=2)
    if pooled:  # 64->64 @224: 2.27 ms where one program of 8 warps takes 2.48
        return Tile(256, 64, in_channels, 4, 2, flatten, residents=2)
    return Tile(256, 64, in_channels, 8, 4, flatten)


def _float32_box_tile(in_channels: int, wide: bool, steps: int, masked: bool, pooled: bool) -> Tile:
    if pooled:
        return Tile(256, 64, in_channels, 8, 3)  # 128 channels take more registers than there are
    if not wide and masked:
        return Tile(128, 64, in_channels, 4, 3, parts=2, residents=2)
    if not wide:
        return Tile(256, 64, in_channels, 8, 4)
    if masked:
        return Tile(256, 128, in_channels, 8, 3, False, parts=4)
    if steps < LONG_FLOAT32_SUM:  # 64->128 @112: 1.74 ms where 256x128 takes 1.87
        return Tile(128, 128, in_channels, 4, 3, False, parts=4, residents=2)
    return Tile(256, 128, in_channels, 8, 3, False, parts=2)


def suits_specialized(taps: Filter, dtype: torch.dtype, box: Box, *, pooled: bool) -> bool:
    """Whether boxes are computed by specialised warps: by Gluon, where they fit."""
    return fits_specialized(taps, dtype, box, pooled=pooled) and available()


def fits_specialized(taps: Filter, dtype: torch.dtype, box: Box, *, pooled: bool) -> bool:
    """Whether sums go in whole steps of 128 bytes, and boxes fit specialised warps.

    float32 tiles leave too little shared memory for stages that hold a tap each: 256->256 @56 takes
    2.90 ms, else 2.60. Windows must lie in single threads.
    """
    if taps.in_channels % step_channels(dtype) != 0:
        return False
    if dtype == torch.float32 and not shares_rows(taps, box):
        return False
    return not pooled or box[2] >= SINGLE_THREAD_COLUMNS


def shares_rows(taps: Filter, box: Box) -> bool:
    """Whether the taps of a column read the rows of one load: 3 rows of one sample's box.

    64->64 @224, N = 256: 1.33 ms in bf16, 2.70 in tf32, and with a load for each tap 1.98 and 4.29.
    """
    whole = box[0] == 1 and box[1] > 1 and box[2] % SINGLE_THREAD_COLUMNS == 0
    dense = taps.size[0] == 3 and taps.stride[0] == 1 and taps.dilation[0] == 1
    return dense and whole and widens()


def specialized_tile(taps: Filter, dtype: torch.dtype) -> Tile:
    """For boxes by specialised warps; two tiles are in flight on a multiprocessor.

    128->128 @112, N = 256, with a mask: 1.41 ms where the best of `box_tile` takes 1.77.
    """
    parts = 2 if dtype == torch.float32 else 1
    if taps.out_channels <= 64:
        return Tile(256, 64, step_channels(dtype), 4, 4, parts=parts)
    return Tile(128, 128, step_channels(dtype), 4, 5, parts=parts)


def im2col_tile(taps: Filter) -> Tile:
    """For the forward pass of few channels; steps are of taps and channels joined.

    3->64 @224, N = 256: 0.54 ms where 64 pixels take 0.94, and 128 by 8 warps 0.87. Of the larger
    filters 7x7/2 is faster by 8 warps, 1.13 ms for 1.27, and 11x11/4 by 4, 0.84 for 0.91.
    """
    columns = taps.num_taps * taps.in_channels
    num_warps = 8 if MOST_JOINED < columns <= 8 * MOST_JOINED else 4
    return Tile(128, 64, block_of(columns, 16, MOST_JOINED), num_warps, 1)


@functools.cache
def box_of(height: int, width: int, pixels: int, least: int = 1) -> Box:
    """Samples, rows and columns of a box of pixels, powers of two, that overruns the map least.

    It has at least so many rows and columns.
    """
    powers = [1 << exponent for exponent in range(pixels.bit_length()) if 1 << exponent >= least]
    boxes = [
        (pixels // (rows * columns), rows, columns)
        for rows in powers
        for columns in powers
        if pixels // MOST_BOX_SAMPLES <= rows * columns <= pixels
    ]

    def cost(box: Box) -> tuple[int, int, int]:
        samples, rows, columns = box
        covered = triton.cdiv(height, rows) * rows * triton.cdiv(width, columns) * columns
        return covered, samples, rows + columns

    return min(boxes, key=cost)


def part_of(box: Box, parts: int) -> Box:
    """The first of so many equal runs of a box's pixels, itself a box."""
    samples, rows, columns = box
    if parts == 1:
        return box
    if samples > 1:
        return part_of((samples // 2, rows, columns), parts // 2)
    return part_of((1, rows // 2, columns) if rows > 1 else (1, 1, columns // 2), parts // 2)


def has_descriptors(nhwc: Tensor) -> bool:
    """Whether a map can be moved by TMA: Hopper on, multiples of 16 bytes.

    A range of channels is moved as the wider map, if it alone could be too.
    """
    if (0, 0) < capability() < (9, 0):
        return False
    lengths = (nhwc.shape[3] * nhwc.dtype.itemsize, pitch_of(nhwc) * nhwc.dtype.itemsize)
    return nhwc.data_ptr() % 16 == 0 and all(length % 16 == 0 for length in lengths)


def suits_descriptors(x: Tensor, y: Tensor, taps: Filter, precision: str) -> bool:
    """Whether both maps can be read by TMA in whole 64-byte steps of the sum."""
    if taps.groups != 1 or not (has_descriptors(x) and has_descriptors(y)):
        return False
    if x.dtype == torch.float32 and precision == "ieee":
        return False
    return taps.in_channels * x.dtype.itemsize % (STEP_NBYTES // 2) == 0

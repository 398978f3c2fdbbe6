"""Tiles of the forward and data-gradient kernels: what a program computes, and how it is run.

Tiles depend on a layer's sizes, dtype and precision and on the GPU, never on the number of samples.
Configurations from tuning replace them (overrides.py). Times in this file are of VGG-16's layers
with 256 samples, "in -> out channels @height" (H200, 2026-11).
"""

import functools
from dataclasses import dataclass, replace
from typing import Final

import torch
import triton
from torch import Tensor

from ..language.channel_ranges import ALIGNMENT, is_aligned, pitch_of
from ..language.device import capability, holds_large_tiles, shared_nbytes
from ..language.gluon import available, widens

Pair = tuple[int, int]
Box = tuple[int, int, int]

FEW_CHANNELS: Final = 16  # channels below which taps and channels are one axis (im2col)
TILE_CHANNELS: Final = 64  # output channels of the least tile that tensor descriptors store
SUMS_OF_16_BYTES: Final = 4  # float32 values
WIDE_TILE: Final = 128  # output channels of the widest tile
GROUP_ALIGNMENT: Final = 8  # channels: 16 bytes of bfloat16
SUM_CHANNELS: Final = 16  # channels of which sums of products have a multiple
STEP_NBYTES: Final = 128  # bytes of channels in one step of a sum: a line, TMA's widest swizzle
MOST_BOX_SAMPLES: Final = 64  # samples of a box, at most
SINGLE_THREAD_COLUMNS: Final = 8  # columns of a box from which a thread holds whole windows 2x2
MOST_IM2COL: Final = 32  # taps and channels in one step: more take too many registers
ROWS_STAGES: Final = 3  # stages of rows that the taps of a column share
ROWS_PACKED_STAGES: Final = 2  # stages of the weights of a column of taps
MOST_EMPTY: Final = 1 / 8  # of the channels that specialised warps load
MOST_EMPTY_AT_STRIDES: Final = 1 / 2  # where the other kernel loads by pointers
LONG_SUM: Final = 36  # steps of a sum from which overlapping tiles gain nothing
LONG_FLOAT32_SUM: Final = 128  # steps from which one large tile is faster than two residents


@dataclass(frozen=True, slots=True)
class Filter:
    """The filter of a convolution and its geometry. Pairs are (h, w)."""

    size: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    blocks: int  # of output channels, each of which reads a band of input channels
    in_channels: int  # of a band
    out_channels: int  # of a block
    widths: Pair  # input and output channels of a group, of which a block may join several
    channels: Pair  # input and output channels of the maps

    @property
    def summed_channels(self) -> int:
        """Input channels of a band that products sum. The weights of all others are zero."""
        if not self.by_group:
            return self.in_channels
        return min(self.in_channels, triton.cdiv(self.widths[0], SUM_CHANNELS) * SUM_CHANNELS)

    @property
    def last_band(self) -> int:
        """The input channel at which the last band starts."""
        return max(0, self.channels[0] - self.summed_channels)

    @property
    def has_bands(self) -> bool:
        """Whether there are several groups."""
        return self.widths != self.channels

    @property
    def by_group(self) -> bool:
        """Whether a block is one group, with tiles of its own, the last of which overruns it."""
        return self.has_bands and has_own_tiles(self.widths)

    @property
    def merges_groups(self) -> bool:
        """Whether blocks have outputs of several groups, or bands inputs of several."""
        alone = self.in_channels == self.widths[0] and self.widths[1] % self.out_channels == 0
        return self.has_bands and not alone and not self.by_group

    @property
    def reads_bands(self) -> bool:
        """Whether weights are of bands of input channels, which may be wider than the map."""
        return self.has_bands or self.in_channels > self.channels[0]

    @property
    def sums_by_pointers(self) -> bool:
        """Whether TMA cannot store sums of weights: it stores whole 16 bytes of one group."""
        return self.merges_groups or self.widths[0] % SUMS_OF_16_BYTES != 0

    @property
    def suits_tiles(self) -> bool:
        """Whether every tile of output channels lies in one block."""
        return self.blocks == 1 or self.by_group or self.out_channels % TILE_CHANNELS == 0

    @property
    def tile_channels(self) -> int:
        """Output channels of a tile of tensor descriptors: 64, or 128 where that overruns no more.

        Without groups a tile of more than 64 channels has 128.
        """
        if self.out_channels <= TILE_CHANNELS:
            return TILE_CHANNELS
        wide, narrow = (
            triton.cdiv(self.out_channels, each) * each for each in (WIDE_TILE, TILE_CHANNELS)
        )
        return TILE_CHANNELS if self.by_group and narrow < wide else WIDE_TILE

    @property
    def mask_channels(self) -> int:
        """A number that divides the output channels of the map, or the first of every tile."""
        return self.widths[1] if self.by_group else self.channels[1]

    @property
    def num_taps(self) -> int:
        """Taps of the filter."""
        return self.size[0] * self.size[1]

    def constants(self) -> dict[str, int]:
        """Size and stride as compile-time arguments of a kernel."""
        size, stride = self.size, self.stride
        return {"R": size[0], "S": size[1], "STRIDE_H": stride[0], "STRIDE_W": stride[1]}


@dataclass(frozen=True, slots=True)
class Tile:
    """The tile of a program, and how it is run."""

    pixels: int
    out_channels: int
    in_channels: int  # of one step of the sum
    num_warps: int
    num_stages: int
    flatten: bool = True  # whether tiles and steps of a persistent program run as one loop
    parts: int = 1  # sub-tiles in which the outputs are stored
    residents: int = 1  # persistent programs on a multiprocessor


def has_own_tiles(widths: Pair) -> bool:
    """Whether groups of these input and output channels have tiles of output channels alone.

    A group fills more than half of the least tile, and descriptors of it are aligned.
    """
    aligned = all(width % GROUP_ALIGNMENT == 0 for width in widths)
    return aligned and 2 * widths[1] > TILE_CHANNELS and widths[1] % TILE_CHANNELS != 0


def block_of(size: int, least: int, most: int) -> int:
    """The least power of two that covers `size`, within bounds that are powers of two."""
    return min(most, max(least, triton.next_power_of_2(size)))


def step_channels(dtype: torch.dtype) -> int:
    """Channels of STEP_NBYTES bytes."""
    return STEP_NBYTES // dtype.itemsize


def fitting_stages(num_bytes: int, most: int) -> int:
    """Stages of `num_bytes` bytes that shared memory holds: at least 2, at most `most`."""
    return max(2, min(most, shared_nbytes() // num_bytes))


def pointer_tile(taps: Filter, dtype: torch.dtype, precision: str, *, pooled: bool) -> Tile:
    """The tile of pointer.py for a forward pass or a data gradient, with pooling where `pooled`."""
    few = taps.in_channels < FEW_CHANNELS
    step = taps.num_taps * taps.in_channels if few else taps.in_channels
    if dtype == torch.float32 and precision == "ieee":
        return Tile(64, block_of(taps.out_channels, 16, 64), block_of(step, 16, 32), 8, 2)
    # ptxas serializes the products of a float32 tile of 128x128 by 8 warps (triton 3.6, sm_90a).
    out_channels = block_of(taps.out_channels, 16, 64 if dtype == torch.float32 else 128)
    in_channels = block_of(step, 16, MOST_IM2COL if few else step_channels(dtype))
    num_stages = fitting_stages((128 + out_channels) * STEP_NBYTES, 3)
    if few and step <= in_channels:
        num_stages = 1
    wide = (out_channels == 128 and not pooled) or (0, 0) < capability() < (9, 0)
    return Tile(128, out_channels, in_channels, 8 if wide else 4, num_stages)


def box_tile(taps: Filter, dtype: torch.dtype, *, masked: bool, pooled: bool) -> Tile:
    """The tile of tma.py for a forward pass or a data gradient."""
    in_channels = _box_step(taps.in_channels, step_channels(dtype))
    wide = taps.tile_channels > TILE_CHANNELS
    steps = taps.num_taps * triton.cdiv(taps.in_channels, in_channels)
    if not holds_large_tiles():
        return _small_box_tile(in_channels, wide, masked, pooled)
    if dtype == torch.float32:
        tile = _float32_box_tile(in_channels, wide, steps, masked, pooled)
    else:
        tile = _bfloat16_box_tile(in_channels, wide, steps, masked, pooled)
    if capability() >= (10, 0):
        # Accumulators pass through shared memory too, which leaves one stage less.
        return replace(tile, num_stages=max(2, tile.num_stages - 1))
    return tile


def _box_step(channels: int, widest: int) -> int:
    """Channels of a step of tma.py: `widest`, or half of it where the last step is then fuller."""
    return min((widest, widest // 2), key=lambda step: triton.cdiv(channels, step) * step)


def _small_box_tile(in_channels: int, wide: bool, masked: bool, pooled: bool) -> Tile:
    """For GPUs with 99 KiB of shared memory a program and TMA, those of compute capability 12.0."""
    parts = 1 if pooled else 4 if masked else 2
    return Tile(128, 128 if wide and not pooled else 64, in_channels, 8, 2, parts=parts)


def _bfloat16_box_tile(
    in_channels: int, wide: bool, steps: int, masked: bool, pooled: bool
) -> Tile:
    """128->128 @112 with a mask takes 1.77 ms by two residents, which overlap, and 1.80 by one."""
    flatten = steps < LONG_SUM
    if wide and masked:
        return Tile(128, 128, in_channels, 4, 3, False, parts=4, residents=2)
    if wide:
        return Tile(256, 128, in_channels, 8, 3 if pooled else 4, flatten, parts=2)
    if pooled:  # 64->64 @224 takes 2.27 ms, and 2.48 ms by one resident of 8 warps
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
    if steps < LONG_FLOAT32_SUM:  # 64->128 @112 takes 1.74 ms, and 1.87 ms by 256x128
        return Tile(128, 128, in_channels, 4, 3, False, parts=4, residents=2)
    return Tile(256, 128, in_channels, 8, 3, False, parts=2)


def suits_specialized(taps: Filter, dtype: torch.dtype, box: Box, *, pooled: bool) -> bool:
    """Whether specialised warps compute boxes here: Gluon runs, and `fits_specialized` holds."""
    return fits_specialized(taps, dtype, box, pooled=pooled) and available()


def fits_specialized(taps: Filter, dtype: torch.dtype, box: Box, *, pooled: bool) -> bool:
    """Whether boxes suit specialised warps, and sums have steps of 128 bytes that are full enough.

    At stride 2 72->72 in 3 groups @112 takes 0.75 ms, and by pointers 1.94 ms; 24->96 @192 takes
    1.29 ms, and by pointers 0.91 ms. float32 tiles must share rows: with a stage for each tap too
    little shared memory is left, and 256->256 @56 takes 2.90 ms instead of 2.60 ms. Pooling windows
    must lie in single threads.
    """
    step = step_channels(dtype)
    empty = -taps.in_channels % step
    most = MOST_EMPTY if taps.stride == (1, 1) else MOST_EMPTY_AT_STRIDES
    if empty > most * (taps.in_channels + empty):
        return False
    if dtype == torch.float32 and not shares_rows(taps, box):
        return False
    return not pooled or box[2] >= SINGLE_THREAD_COLUMNS


def shares_rows(taps: Filter, box: Box) -> bool:
    """Whether the three taps of a column read the rows of one load, for boxes of one sample.

    64->64 @224 takes 1.33 ms in bf16 and 2.70 ms in tf32; with a load for each tap 1.98 and 4.29
    ms.
    """
    whole = box[0] == 1 and box[1] > 1 and box[2] % SINGLE_THREAD_COLUMNS == 0
    dense = taps.size[0] == 3 and taps.stride[0] == 1 and taps.dilation[0] == 1
    return dense and whole and not taps.by_group and widens()


def specialized_tile(taps: Filter, dtype: torch.dtype, *, shared: bool = False) -> Tile:
    """The tile of warp_specialized.py. Two tiles are in flight on a multiprocessor.

    Stages are fewer where one holds the rows that the taps of a column share. 128->128 @112 with a
    mask takes 1.41 ms, and 1.77 ms by the best of `box_tile`.
    """
    parts, step = 2 if dtype == torch.float32 else 1, step_channels(dtype)
    if taps.tile_channels == TILE_CHANNELS:
        return Tile(256, 64, step, 4, ROWS_STAGES if shared else 4, parts=parts)
    return Tile(128, 128, step, 4, ROWS_STAGES if shared else 5, parts=parts)


def im2col_tile(taps: Filter) -> Tile:
    """The tile of im2col.py. `in_channels` counts taps and channels.

    3->64 @224 takes 0.54 ms, with 64 pixels 0.94 ms, and with 8 warps 0.87 ms. Of larger filters
    7x7/2 takes 1.13 ms by 8 warps and 1.27 ms by 4, 11x11/4 takes 0.84 ms by 4 and 0.91 ms by 8.
    """
    columns = taps.num_taps * taps.in_channels
    num_warps = 8 if MOST_IM2COL < columns <= 8 * MOST_IM2COL else 4
    return Tile(128, 64, block_of(columns, 16, MOST_IM2COL), num_warps, 1)


@functools.cache
def box_of(height: int, width: int, pixels: int, least: int = 1) -> Box:
    """The box of `pixels` pixels that overruns a map of these sides least.

    Samples, rows and columns are powers of two. Rows and columns are at least `least`.
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
    """The first of `parts` equal runs of a box's pixels, which is a box too."""
    samples, rows, columns = box
    if parts == 1:
        return box
    if samples > 1:
        return part_of((samples // 2, rows, columns), parts // 2)
    return part_of((1, rows // 2, columns) if rows > 1 else (1, 1, columns // 2), parts // 2)


def has_descriptors(nhwc: Tensor) -> bool:
    """Whether TMA can move a map: from Hopper on, where pixels lie at multiples of 16 bytes."""
    if (0, 0) < capability() < (9, 0):
        return False
    _, height, width, channels = nhwc.shape
    aligned = is_aligned((height, width), channels, pitch_of(nhwc), nhwc.dtype.itemsize)
    return nhwc.data_ptr() % ALIGNMENT == 0 and aligned


def suits_descriptors(x: Tensor, y: Tensor, taps: Filter, precision: str) -> bool:
    """Whether TMA can move both maps, and taps have a step of their own.

    The last step of a tap has zeros behind its channels, times weights of the tap behind it. Bands
    have whole steps.
    """
    if not (taps.suits_tiles and has_descriptors(x) and has_descriptors(y)):
        return False
    if taps.has_bands and taps.in_channels % step_channels(x.dtype) != 0:
        return False
    if x.dtype == torch.float32 and precision == "ieee":
        return False
    return taps.in_channels >= FEW_CHANNELS

"""Tiles of the forward and data-gradient kernels: what a program computes, and how it is run.

They depend on a layer's sizes, dtype and precision and on the GPU, never on the number of samples.
Times behind the choices: VGG-16's layers, H200, 2026-11.
"""

import functools
from dataclasses import dataclass
from typing import Final

import torch
import triton
from torch import Tensor

from .device import capability, shared_nbytes

Pair = tuple[int, int]

FEW_CHANNELS: Final = 16  # below it, taps and channels are joined into one axis
STEP_NBYTES: Final = 128  # of channels in one step of a sum: a line, and TMA's widest swizzle
MOST_BOX_SAMPLES: Final = 64
LONG_SUM: Final = 64  # steps of a sum from which tiles gain nothing by overlapping


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
    out_channels = block_of(taps.out_channels, 64, 128)
    flatten = taps.num_taps * taps.in_channels < LONG_SUM * in_channels
    num_stages = 3 if out_channels == 128 and dtype == torch.float32 else 4
    if capability() >= (10, 0):
        num_stages -= 1  # its accumulators leave through shared memory as well
    if masked or pooled:
        num_stages -= 1  # masks and taps pass through shared memory
    pixels = 128 if pooled and dtype == torch.float32 else 256  # else registers spill
    return Tile(pixels, out_channels, in_channels, 8, num_stages, flatten)


@functools.cache
def box_of(height: int, width: int, pixels: int, least: int = 1) -> tuple[int, int, int]:
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

    def cost(box: tuple[int, int, int]) -> tuple[int, int, int]:
        samples, rows, columns = box
        covered = triton.cdiv(height, rows) * rows * triton.cdiv(width, columns) * columns
        return covered, samples, rows + columns

    return min(boxes, key=cost)


def half_of(box: tuple[int, int, int]) -> tuple[int, int, int]:
    """The first half of a box's pixels, itself a box."""
    samples, rows, columns = box
    if samples > 1:
        return samples // 2, rows, columns
    return (1, rows // 2, columns) if rows > 1 else (1, 1, columns // 2)


def suits_descriptors(x: Tensor, y: Tensor, taps: Filter, precision: str) -> bool:
    """Whether both maps can be read by TMA: Hopper on, whole 64-byte steps, 16-byte addresses."""
    if (0, 0) < capability() < (9, 0) or taps.groups != 1:
        return False
    if x.dtype == torch.float32 and precision == "ieee":
        return False
    nbytes = taps.in_channels * x.dtype.itemsize, taps.out_channels * x.dtype.itemsize
    aligned = x.data_ptr() % 16 == 0 and y.data_ptr() % 16 == 0
    return aligned and nbytes[0] % (STEP_NBYTES // 2) == 0 and nbytes[1] % 16 == 0

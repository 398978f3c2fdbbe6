"""Launches of kernels that work element by element, over contiguous tensors or channel ranges."""

import math
from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from .channel_ranges import pitch_of
from .rounding import stored

BLOCK: Final = 4096
NUM_WARPS: Final = 8
RANGE_CHANNELS: Final = 64  # of a program's block of a range
LOAD_NBYTES: Final = 16


@triton.jit
def load_values(ptrs, mask, is_whole) -> tl.tensor:
    """The values at the pointers in float32; a whole block has loads of 16 bytes."""
    values = tl.load(ptrs) if is_whole else tl.load(ptrs, mask=mask, other=0.0)
    return values.to(tl.float32)


@triton.jit
def store_values(ptrs, values, mask, is_whole, PRECISION: tl.constexpr) -> None:
    """Store the values as products of `PRECISION` will read them."""
    values = stored(values, ptrs.dtype.element_ty, PRECISION)
    if is_whole:
        tl.store(ptrs, values)
    else:
        tl.store(ptrs, values, mask=mask)


@triton.jit
def block_channels(
    pixels, lanes, LANE: tl.constexpr, BLOCK_PIXELS: tl.constexpr, BLOCK_C: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Channels [1, BLOCK_C] of this program's block of a range, and which of it are there."""
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    left = pixels - tl.program_id(0).to(tl.int64) * BLOCK_PIXELS
    return c, (tl.arange(0, BLOCK_PIXELS)[:, None] < left) & (c < lanes * LANE)


@triton.jit
def block_ptrs(ptr, c, lanes, LANE: tl.constexpr, BLOCK_PIXELS: tl.constexpr) -> tl.tensor:
    """Pointers to channels c of this program's pixels [BLOCK_PIXELS, 1], so many lanes apart."""
    start = tl.program_id(0).to(tl.int64) * BLOCK_PIXELS
    rows = tl.arange(0, BLOCK_PIXELS)[:, None] * (lanes * LANE)
    return ptr + start * (lanes * LANE) + (rows + c)


def are_whole(*maps: Tensor) -> bool:
    """Whether all maps are contiguous, as `launch` takes them."""
    return all(each.is_contiguous() for each in maps)


def launch(kernel: triton.JITFunction, *tensors: Tensor, **constants: str | float) -> None:
    """Launch over tensors of as many elements each; `kernel` takes their number behind them."""
    numel = tensors[0].numel()
    if numel == 0:
        return
    grid = (triton.cdiv(numel, BLOCK),)
    kernel[grid](*tensors, numel, **constants, BLOCK=BLOCK, num_warps=NUM_WARPS)


def launch_ranges(kernel: triton.JITFunction, *maps: Tensor, **constants: str | float) -> None:
    """Launch over maps [..., C] of one shape, each a range of the channels of a contiguous map.

    Behind them `kernel` takes the number of pixels, then channels and pitches in lanes: runs of
    LANE channels that one load takes.
    """
    rows = [each.flatten(0, -2) for each in maps]
    pixels, channels = rows[0].shape
    if rows[0].numel() == 0:
        return
    pitches = [pitch_of(each) for each in rows]
    starts = (each.storage_offset() for each in rows)
    lane = math.gcd(LOAD_NBYTES // maps[0].element_size(), channels, *pitches, *starts)
    block_c = min(triton.next_power_of_2(channels), RANGE_CHANNELS)
    block_pixels = BLOCK // block_c
    grid = (triton.cdiv(pixels, block_pixels), triton.cdiv(channels, block_c))
    kernel[grid](
        *rows, pixels, channels // lane, *(pitch // lane for pitch in pitches), **constants,
        LANE=lane, BLOCK_PIXELS=block_pixels, BLOCK_C=block_c, num_warps=NUM_WARPS,
    )  # fmt: skip

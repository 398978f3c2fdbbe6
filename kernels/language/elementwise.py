"""What elementwise kernels share: loads, stores, launches over contiguous maps or channel ranges.

A lane is a run of LANE channels that one load takes. Sizes of ranges are counted in lanes.
"""

import math
from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from .channel_ranges import pitch_of
from .rounding import stored

BLOCK: Final = 4096  # elements of a program
NUM_WARPS: Final = 8
RANGE_CHANNELS: Final = 64  # channels of a program's block of a range, at most
LOAD_NBYTES: Final = 16  # bytes of the widest load


@triton.jit
def block_at(numel, BLOCK: tl.constexpr) -> tl.tuple:
    """A program's first element (int64), offsets from it, their mask, and whether all exist."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offs = tl.arange(0, BLOCK)
    return start, offs, offs < numel - start, start + BLOCK <= numel


@triton.jit
def load_block(ptrs, mask, is_whole, EVICTION: tl.constexpr) -> tl.tensor:
    """What lies at the pointers, 0 outside `mask`.

    A whole block is loaded without the mask, 16 bytes at a time.
    """
    if is_whole:
        values = tl.load(ptrs, eviction_policy=EVICTION)
    else:
        values = tl.load(ptrs, mask=mask, other=0, eviction_policy=EVICTION)
    return values


@triton.jit
def store_block(ptrs, values, mask, is_whole) -> None:
    """Store at the pointers inside `mask`.

    A whole block is stored without the mask, 16 bytes at a time.
    """
    if is_whole:
        tl.store(ptrs, values)
    else:
        tl.store(ptrs, values, mask=mask)


@triton.jit
def load_values(ptrs, mask, is_whole) -> tl.tensor:
    """The values at the pointers in float32, 0 outside `mask`."""
    return load_block(ptrs, mask, is_whole, "").to(tl.float32)


@triton.jit
def store_values(ptrs, values, mask, is_whole, PRECISION: tl.constexpr) -> None:
    """Store float32 values, rounded as products of `PRECISION` read them."""
    store_block(ptrs, stored(values, ptrs.dtype.element_ty, PRECISION), mask, is_whole)


@triton.jit
def block_channels(
    pixels, lanes, LANE: tl.constexpr, BLOCK_PIXELS: tl.constexpr, BLOCK_C: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Channels [1, BLOCK_C] of this program's block of a range, and its mask [pixels, channels]."""
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    left = pixels - tl.program_id(0).to(tl.int64) * BLOCK_PIXELS
    return c, (tl.arange(0, BLOCK_PIXELS)[:, None] < left) & (c < lanes * LANE)


@triton.jit
def block_ptrs(ptr, c, lanes, LANE: tl.constexpr, BLOCK_PIXELS: tl.constexpr) -> tl.tensor:
    """Pointers [BLOCK_PIXELS, BLOCK_C] to channels c of this program's pixels, `lanes` apart."""
    start = tl.program_id(0).to(tl.int64) * BLOCK_PIXELS
    rows = tl.arange(0, BLOCK_PIXELS)[:, None] * (lanes * LANE)
    return ptr + start * (lanes * LANE) + (rows + c)


def are_whole(*maps: Tensor) -> bool:
    """Whether all maps are contiguous: then `launch` takes them, else `launch_ranges`."""
    return all(each.is_contiguous() for each in maps)


def launch(kernel: triton.JITFunction, *tensors: Tensor, **constants: str | float) -> None:
    """Launch over contiguous tensors of the same number of elements.

    `kernel` takes the tensors, then the number of elements.
    """
    numel = tensors[0].numel()
    if numel == 0:
        return
    grid = (triton.cdiv(numel, BLOCK),)
    kernel[grid](*tensors, numel, **constants, BLOCK=BLOCK, num_warps=NUM_WARPS)


def launch_ranges(kernel: triton.JITFunction, *maps: Tensor, **constants: str | float) -> None:
    """Launch over maps [..., C] of one shape, each a channel range of a contiguous map.

    `kernel` takes the maps, the number of pixels, and the channels and the pitches in lanes.
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


def launch_maps(
    kernel: triton.JITFunction, ranges_kernel: triton.JITFunction, *maps: Tensor,
    **constants: str | float,
) -> None:  # fmt: skip
    """Launch `kernel` over contiguous maps, or `ranges_kernel` where a map is a channel range."""
    if are_whole(*maps):
        launch(kernel, *maps, **constants)
    else:
        launch_ranges(ranges_kernel, *maps, **constants)

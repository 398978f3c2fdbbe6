"""Tiles of the maps that batch normalization's kernels write.

A tile has rows and columns of a matrix. A row is a pixel. Where all maps are contiguous, a row may
be a run of pixels whose channels fill a power of two: 28 pixels of 72 channels fill 2016 of 2048
columns. Blocks of 16 of 72 channels cut the 32-byte sectors of memory. Such launches took 1.6 times
as long as their bytes (256x112x112x72, H100, 2026-11-27).
"""

from dataclasses import dataclass
from math import gcd
from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from ..language.channel_blocks import best_block, block_cost
from ..language.device import num_sms
from .batch_norm_tiles import in_tile, pitch_of, place_of

ELEMENTS: Final = 4096  # of a tile: 16 a thread, of whose registers an SM holds 24 warps
MOST_STEPS: Final = 8  # tiles of a program, at most. It loads factors of channels once.
PROGRAMS: Final = 16  # programs of an SM, at least, where a program has several tiles
NUM_WARPS: Final = 8
RUN: Final = 2048  # columns of a row of several pixels: one load of 16 bytes a thread in bfloat16
RUN_ALIGN: Final = 8  # divides the channels of a run


@triton.jit
def columns_at(
    channels, width, C_ALIGN: tl.constexpr, RUNS: tl.constexpr, ALIGN: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """A program's number (int64) among those of its columns [BLOCK_C]; these, channels, their mask.

    With RUNS a row has `width` channels of several pixels. C_ALIGN divides the channels of a pixel.
    """
    number, column, mask_c = place_of(tl.program_id(0), width, ALIGN, BLOCK_C)
    c = column
    if RUNS:
        c = column // C_ALIGN % (channels // C_ALIGN) * C_ALIGN + column % C_ALIGN
    return number, column, c, mask_c


@triton.jit
def mask_at(
    start, column, mask_c, num_rows, channels, width,
    RUNS: tl.constexpr, ALIGN: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The mask [BLOCK_R, BLOCK_C] of a tile from row `start` (int64) on. `num_rows` are pixels.

    ALIGN divides the width and the number of all elements.
    """
    if RUNS:
        width = width // ALIGN * ALIGN
        left = num_rows.to(tl.int64) * channels - start * width
        left = tl.minimum(left, BLOCK_R * BLOCK_C).to(tl.int32) // ALIGN * ALIGN
        offs = tl.arange(0, BLOCK_R)[:, None] * width + column[None, :]
        mask = (offs < left) & mask_c[None, :]
    else:
        mask = in_tile(num_rows - start, mask_c, BLOCK_R)
    return mask


@dataclass(frozen=True, slots=True)
class WrittenTiles:
    """The tiles of a launch."""

    grid: tuple[int]
    width: int  # channels of a row
    steps: int  # tiles of a program
    pitches: tuple[int, ...]  # elements from one row of a map to the next, 0 without a map
    constants: dict[str, int]


def written_tiles(out: Tensor, *maps: Tensor | None, signs: bool = False) -> WrittenTiles:
    """The tiles of a launch that writes `out` from `maps`. With sign bits a row is a pixel."""
    channels = out.shape[-1]
    rows, pitches = out.numel() // channels, tuple(map(pitch_of, (out, *maps)))
    width, block_c = channels, best_block(channels)
    run = _pixels_of_run(channels)
    runs = not signs and run > 0 and all(pitch in (0, channels) for pitch in pitches)
    if runs and RUN / (run * channels) < block_cost(channels, block_c):
        width, block_c = run * channels, RUN
        pitches = tuple(pitch and width for pitch in pitches)
        align = gcd(RUN_ALIGN, out.numel())
    else:
        runs, align = False, gcd(16, channels, *pitches)
    block_c = min(block_c, triton.next_power_of_2(width))
    block_r = ELEMENTS // block_c
    tiles_r = triton.cdiv(rows * channels, block_r * width) if runs else triton.cdiv(rows, block_r)
    constants = {
        "C_ALIGN": gcd(16, channels), "RUNS": runs, "ALIGN": align,
        "BLOCK_R": block_r, "BLOCK_C": block_c, "num_warps": NUM_WARPS,
    }  # fmt: skip
    tiles_c = triton.cdiv(width, block_c)
    steps = max(min(tiles_r * tiles_c // (PROGRAMS * num_sms()), MOST_STEPS), 1)
    grid = (triton.cdiv(tiles_r, steps) * tiles_c,)
    return WrittenTiles(grid, width, steps, pitches, constants)


def _pixels_of_run(channels: int) -> int:
    """Pixels whose channels fit RUN columns and are a multiple of RUN_ALIGN, 0 if none do."""
    step = RUN_ALIGN // gcd(RUN_ALIGN, channels)
    return RUN // channels // step * step

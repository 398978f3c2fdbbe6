"""Tiles of NHWC maps for kernels that read windows: places of programs, launches, sizes.

A tile is BLOCK_W columns by BLOCK_C channels of one row of one sample.
"""

from math import gcd
from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from .channel_ranges import pitch_of

Pair = tuple[int, int]

TILE: Final = (1024, 256)  # elements and channels of a tile, at most
OVERLAP_TILE: Final = (256, 64)  # TILE for overlapping windows, whose loads share L1 cache lines
NUM_WARPS: Final = 4  # warps of a program, at most
WARP_TILE: Final = 256  # elements of a warp
UNROLLED_TAPS: Final = 16  # taps of a window up to which its loop is unrolled
LOOP_SIZES: Final = ["height", "width", "out_height", "out_width", "tiles_w", "tiles_c"]


@triton.jit
def tile_place(tiles_w, tiles_c, height, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr) -> tl.tuple:
    """This program's sample (int64), row, columns [BLOCK_W, 1] and channels [1, BLOCK_C]."""
    pid = tl.program_id(0)
    c = pid % tiles_c * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    w = pid // tiles_c % tiles_w * BLOCK_W + tl.arange(0, BLOCK_W)[:, None]
    row = pid // tiles_c // tiles_w
    return (row // height).to(tl.int64), row % height, w, c


@triton.jit
def row(ptr, n, h, height, width, pitch) -> tl.tensor:
    """Pointer to row h of sample n of a map. The row may lie outside the map."""
    return ptr + (n * height + h) * width * pitch


@triton.jit
def aligned(x_pitch, y_pitch, channels, ALIGN: tl.constexpr) -> tl.tuple:
    """The arguments, as multiples of ALIGN for the compiler, which else loads single channels."""
    return x_pitch // ALIGN * ALIGN, y_pitch // ALIGN * ALIGN, channels // ALIGN * ALIGN


def launch(
    kernel: triton.JITFunction,
    operands: tuple[Tensor | float, ...],
    rows: int,
    width: int,
    channels: int,
    tile: Pair = TILE,
    **constants: int | str,
) -> None:
    """Launch a program for each tile of `rows` rows, which count over all samples.

    The kernel takes `operands`, channels, and the number of tiles along columns and channels.
    """
    block_c = min(triton.next_power_of_2(channels), tile[1])
    block_w = min(triton.next_power_of_2(width), max(tile[0] // block_c, 1))
    tiles_w, tiles_c = triton.cdiv(width, block_w), triton.cdiv(channels, block_c)
    if rows == 0:
        return
    kernel[(rows * tiles_w * tiles_c,)](
        *operands, channels, tiles_w, tiles_c,
        **constants, BLOCK_W=block_w, BLOCK_C=block_c,
        num_warps=max(min(block_w * block_c // WARP_TILE, NUM_WARPS), 1),
    )  # fmt: skip


def sides(x: Tensor, y: Tensor) -> tuple[int, ...]:
    """Height and width of map x, height and width of map y, and the pitches of both in elements."""
    return (*x.shape[1:3], *y.shape[1:3], pitch_of(x), pitch_of(y))


def alignment(x: Tensor, y: Tensor) -> int:
    """The power of two that divides the channels and the pitches of both maps, at most 16."""
    return gcd(16, x.shape[-1], pitch_of(x), pitch_of(y))


def by_side(**pairs: Pair) -> dict[str, int]:
    """Pairs (h, w) as compile-time arguments of a kernel: `stride` as STRIDE_H and STRIDE_W."""
    return {
        f"{name.upper()}_{side}": number
        for name, pair in pairs.items()
        for side, number in zip("HW", pair, strict=True)
    }


def unroll(taps_h: int, taps_w: int) -> int:
    """Taps of a window [taps_h, taps_w] whose loads are in flight together."""
    return taps_h * taps_w if taps_h * taps_w <= UNROLLED_TAPS else min(taps_w, UNROLLED_TAPS)


def nchw(nhwc: Tensor) -> Tensor:
    """A map [N, H, W, C] as float32 [N, C, H, W]."""
    return nhwc.permute(0, 3, 1, 2).float()


def any_ceil(x: Tensor, y: Tensor, extent: Pair, stride: Pair, padding: Pair) -> bool:
    """Whether a side of the pooled map y has the size of torch's ceil_mode, not of floor mode.

    `extent` are the sides that a window spans in x.
    """
    for axis, (kernel, step, pad) in enumerate(zip(extent, stride, padding, strict=True), 1):
        if y.shape[axis] != (x.shape[axis] + 2 * pad - kernel) // step + 1:
            return True
    return False

"""Tiles of NHWC maps under pooling windows: their place in a grid, their launch, their sides."""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from .channel_ranges import pitch_of

Pair = tuple[int, int]

TILE: Final = (1024, 256)  # elements, and of them channels, at most
OVERLAP_TILE: Final = (256, 64)  # where windows overlap, whose loads meet in the L1 cache
NUM_WARPS: Final = 4  # at most
WARP_TILE: Final = 256  # elements of a warp
UNROLLED_TAPS: Final = 16
LOOP_SIZES: Final = ["height", "width", "out_height", "out_width", "tiles_w", "tiles_c"]


@triton.jit
def tile_place(tiles_w, tiles_c, height, BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr) -> tl.tuple:
    """Sample, row, columns [BLOCK_W, 1] and channels [1, BLOCK_C] of this program's tile."""
    pid = tl.program_id(0)
    c = pid % tiles_c * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    w = pid // tiles_c % tiles_w * BLOCK_W + tl.arange(0, BLOCK_W)[:, None]
    row = pid // tiles_c // tiles_w
    return (row // height).to(tl.int64), row % height, w, c


@triton.jit
def row(ptr, n, h, height, width, pitch) -> tl.tensor:
    """Pointer to row h of sample n; any h, also outside of the map."""
    return ptr + (n * height + h) * width * pitch


def launch(
    kernel: triton.JITFunction,
    operands: tuple[Tensor | float, ...],
    rows: int,
    width: int,
    channels: int,
    tile: Pair = TILE,
    **constants: int | str,
) -> None:
    """One program for each tile of `rows` rows; 16-byte vectors of channels."""
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
    """Height and width of the pooled map and of its pools, and the pitches of both."""
    return (*x.shape[1:3], *y.shape[1:3], pitch_of(x), pitch_of(y))


def unroll(taps_h: int, taps_w: int) -> int:
    """Taps whose loads are in flight together."""
    return taps_h * taps_w if taps_h * taps_w <= UNROLLED_TAPS else min(taps_w, UNROLLED_TAPS)


def nchw(nhwc: Tensor) -> Tensor:
    return nhwc.permute(0, 3, 1, 2).float()


def _ceil_mode(height: int, out_height: int, kernel: int, stride: int, padding: int) -> bool:
    """Whether a side of pools is not that of floor mode."""
    return out_height != (height + 2 * padding - kernel) // stride + 1


def any_ceil(x: Tensor, y: Tensor, extent: Pair, stride: Pair, padding: Pair) -> bool:
    sides = zip(x.shape[1:3], y.shape[1:3], extent, stride, padding, strict=True)
    return any(_ceil_mode(*side) for side in sides)

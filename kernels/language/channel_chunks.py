"""Chunks of a sample's pixels. A program sums or scales the channels of one chunk.

A chunk consists of whole tiles; the last chunk of a sample may be shorter. The chunks depend on a
sample's size alone. Sums of chunks therefore have the same bits in every launch.
"""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

TILE: Final = 4096  # elements of a program's tile, at most
BLOCK_C: Final = 64  # 64 bfloat16 channels are one 128-byte line
MOST_CHUNKS: Final = 256  # chunks of a sample, at most


@triton.jit
def chunk_place(pixels, chunks, chunk, PIXELS: tl.constexpr, CHANNELS: tl.constexpr) -> tl.tuple:
    """A program's sample (int64), first pixel of its chunk, one past the last, pixels, channels.

    The pixels [PIXELS, 1] of a tile count from the tile's first. Channels are [1, CHANNELS].
    Consecutive programs take the `chunks` chunks, of `chunk` pixels each, of one sample.
    """
    pid = tl.program_id(0)
    start = pid % chunks * chunk
    sample = (pid // chunks).to(tl.int64)
    stop = tl.minimum(start + chunk, pixels)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    return sample, start, stop, tl.arange(0, PIXELS)[:, None], c


def tile_of(pixels: int, channels: int) -> tuple[int, int]:
    """Pixels and channels of a program's tile, both powers of two."""
    block_c = min(triton.next_power_of_2(channels), BLOCK_C)
    return min(triton.next_power_of_2(pixels), TILE // block_c), block_c


def chunk_of(pixels: int, channels: int) -> int:
    """Pixels of a chunk of a sample [pixels, channels]."""
    block_p, _ = tile_of(pixels, channels)
    return block_p * triton.next_power_of_2(triton.cdiv(pixels, block_p * MOST_CHUNKS))


def num_chunks(pixels: int, channels: int) -> int:
    """Number of chunks of a sample [pixels, channels]."""
    return triton.cdiv(pixels, chunk_of(pixels, channels))


def launch_chunks(
    kernel: triton.JITFunction, x: Tensor, tensors: tuple[Tensor | None, ...],
    *sizes: float, **constants: str | int,
) -> None:  # fmt: skip
    """Launch one program for each chunk and block of channels of x [N, P, C].

    The kernel takes `tensors`, pixels, channels, `sizes`, the number of chunks, pixels of a chunk.
    """
    samples, pixels, channels = x.shape
    chunk = chunk_of(pixels, channels)
    chunks = triton.cdiv(pixels, chunk)
    block_p, block_c = tile_of(pixels, channels)
    kernel[(samples * chunks, triton.cdiv(channels, block_c))](
        *tensors, pixels, channels, *sizes, chunks, chunk, **constants,
        PIXELS=block_p, CHANNELS=block_c, num_warps=max(1, block_p * block_c // 512),
    )  # fmt: skip

"""Chunks of the pixels of a sample: what a program takes that sums channels, or scales them.

A chunk is whole tiles, the last one of a sample cut short. A sample has so many chunks whatever the
launch, so that what they leave of it has the same bits in all.
"""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

TILE: Final = 4096  # elements of a map that a program holds
BLOCK_C: Final = 64  # 64 bfloat16 channels are one 128-byte line
MOST_CHUNKS: Final = 256  # of a sample


@triton.jit
def chunk_place(pixels, chunks, chunk) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The sample of a program, and the first pixel and the one behind the last of its chunk."""
    pid = tl.program_id(0)
    start = pid % chunks * chunk
    return (pid // chunks).to(tl.int64), start, tl.minimum(start + chunk, pixels)


def tile_of(pixels: int, channels: int) -> tuple[int, int]:
    """Pixels and channels of a program's tile."""
    block_c = min(triton.next_power_of_2(channels), BLOCK_C)
    return min(triton.next_power_of_2(pixels), TILE // block_c), block_c


def chunk_of(pixels: int, channels: int) -> int:
    """Pixels of a chunk."""
    block_p, _ = tile_of(pixels, channels)
    return block_p * triton.next_power_of_2(triton.cdiv(pixels, block_p * MOST_CHUNKS))


def num_chunks(pixels: int, channels: int) -> int:
    """Chunks of a sample of so many pixels."""
    return triton.cdiv(pixels, chunk_of(pixels, channels))


def launch_chunks(
    kernel: triton.JITFunction, x: Tensor, tensors: tuple[Tensor | None, ...],
    *sizes: float, **constants: str | int,
) -> None:  # fmt: skip
    """Launch over the chunks of x [N, P, C]; `sizes` stand before their number."""
    samples, pixels, channels = x.shape
    chunk = chunk_of(pixels, channels)
    chunks = triton.cdiv(pixels, chunk)
    block_p, block_c = tile_of(pixels, channels)
    kernel[(samples * chunks, triton.cdiv(channels, block_c))](
        *tensors, pixels, channels, *sizes, chunks, chunk, **constants,
        PIXELS=block_p, CHANNELS=block_c, num_warps=max(1, block_p * block_c // 512),
    )  # fmt: skip

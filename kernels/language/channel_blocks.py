"""Blocks of channels: a launch divides the channels of a map among programs by them."""

from collections.abc import Iterable
from typing import Final

import triton

# What short pieces of rows cost beside long ones. Gates over 64x14x14 pixels took 1.6 times as long
# as their bytes in blocks of 32 of 672 channels, and 1.1 times in blocks of 64 of 960. Normalized
# maps of 624 channels took 1.5 times in blocks of 16 (H100, 2026-11-27).
PIECES: Final = {512: 1.0, 256: 1.0, 128: 1.0, 64: 1.0, 32: 1.3, 16: 1.45}
SECTOR: Final = 16  # bfloat16 channels of the 32 bytes that memory moves together


def block_cost(channels: int, block: int) -> float:
    """1 for blocks without idle lanes and cut sectors, more with these."""
    idle = triton.cdiv(channels, block) * block / channels
    cut = SECTOR / block if channels % SECTOR else 0.0
    return idle * max(PIECES[block], 1.0 + cut)


def best_block(channels: int, blocks: Iterable[int] = tuple(PIECES)) -> int:
    """The block that costs least; of equal ones the first."""
    return min(blocks, key=lambda block: block_cost(channels, block))

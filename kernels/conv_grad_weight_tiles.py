"""Tiles of the weight-gradient kernels: what a program computes, with how many warps and stages.

They depend on a layer's sizes, dtype and precision, never on the number of samples. Times behind
the choices: VGG-16's layers, H200, 2026-11.
"""

from dataclasses import replace
from typing import Final

import torch
import triton

from .conv_tiles import (
    FEW_CHANNELS,
    STEP_NBYTES,
    Filter,
    Tile,
    block_of,
    fitting_stages,
    step_channels,
)

SHARED_BY: Final = 4  # programs of two warps that run on one multiprocessor at a time


def grad_weight_tile(taps: Filter, dtype: torch.dtype, precision: str) -> Tile:
    """Set by the sizes alone, so that planning needs no device."""
    few = taps.in_channels < FEW_CHANNELS
    columns = taps.num_taps * taps.in_channels if few else taps.in_channels
    block_k = block_of(taps.out_channels, 16, 128)
    block_c = block_of(columns, 16, 128)
    if dtype == torch.float32 and precision == "ieee":
        return Tile(16, min(block_k, 64), min(block_c, 64), 8, 2)
    if few:
        return Tile(step_channels(dtype), block_k, block_c, 4, 3)
    if dtype == torch.float32:
        # Two warps keep to mma.sync: wgmma cannot transpose float32, and 128x128 by eight warps ran
        # at 41 TFLOP/s where this ran at 178 (256->256 @56).
        return Tile(32, min(block_k, 64), block_c, 2, 3)
    if taps.out_channels % 256 == 0 and taps.in_channels % 256 == 0:
        return Tile(64, 128, 256, 8, 4)  # 655 TFLOP/s where 128x128 by 8 warps has 577, same layer
    if taps.out_channels % 256 == 0 and block_c == 128:
        return Tile(64, 256, 128, 8, 4)
    return Tile(128, block_k, block_c, 4, 3 if block_k == block_c == 128 else 4)


def grad_weight_pointer_tile(taps: Filter, dtype: torch.dtype, precision: str) -> Tile:
    """The same part of the gradient, read by pointers."""
    tile = grad_weight_tile(taps, dtype, precision)
    if dtype == torch.float32 and precision == "ieee":
        return tile
    num_stages = fitting_stages((tile.out_channels + tile.in_channels) * STEP_NBYTES, 3)
    num_warps = 8 if tile.out_channels * tile.in_channels > 64 * 64 else 4
    return replace(tile, pixels=step_channels(dtype), num_warps=num_warps, num_stages=num_stages)


def grad_weight_programs(taps: Filter, dtype: torch.dtype, precision: str) -> int:
    """Programs of one partial weight gradient."""
    tile = grad_weight_tile(taps, dtype, precision)
    if taps.in_channels < FEW_CHANNELS:
        tiles_c = triton.cdiv(taps.num_taps * taps.in_channels, tile.in_channels)
    else:
        tiles_c = taps.num_taps * triton.cdiv(taps.in_channels, tile.in_channels)
    return taps.groups * tiles_c * triton.cdiv(taps.out_channels, tile.out_channels)

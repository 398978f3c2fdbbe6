"""Shuffled channels of NHWC maps.

Two halves of a pixel's channels are interleaved, or taken apart again, in registers: loads and
stores move several adjacent channels at once. Other shuffles are copies between strides.
"""

from math import gcd
from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from ..language.channel_ranges import pitch_of
from .layout import permute

NUM_WARPS: Final = 4
TILE: Final = 2048  # channels of each half in a program's tile
WIDTHS: Final = (128, 64, 32)  # channels of a half in a tile


@triton.jit(do_not_specialize=["pixels", "tiles_c"])
def _interleave_kernel(
    x_ptr, y_ptr, pixels, half, x_pitch, y_pitch, tiles_c,
    INVERSE: tl.constexpr, ALIGN: tl.constexpr, HALF_ALIGN: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Channels i and `half` + i of x become channels 2 i and 2 i + 1 of y. INVERSE: y becomes x."""
    tile_c = tl.program_id(0) % tiles_c
    start = (tl.program_id(0) // tiles_c).to(tl.int64) * BLOCK_P
    p = tl.arange(0, BLOCK_P)[:, None]
    x_pitch, half = x_pitch // HALF_ALIGN * HALF_ALIGN, half // HALF_ALIGN * HALF_ALIGN
    y_pitch, channels = y_pitch // ALIGN * ALIGN, 2 * half // ALIGN * ALIGN
    i = tile_c * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    c = tile_c * (2 * BLOCK_C) + tl.arange(0, 2 * BLOCK_C)[None, :]
    x_ptrs = x_ptr + start * x_pitch + (p * x_pitch + i)  # [BLOCK_P, BLOCK_C]
    y_ptrs = y_ptr + start * y_pitch + (p * y_pitch + c)  # [BLOCK_P, 2 BLOCK_C]
    x_mask = (p < pixels - start) & (i < half)
    y_mask = (p < pixels - start) & (c < channels)
    if INVERSE:
        y = tl.load(y_ptrs, mask=y_mask, other=0.0)
        first, second = tl.split(tl.reshape(y, (BLOCK_P, BLOCK_C, 2)))
        tl.store(x_ptrs, first, mask=x_mask)
        tl.store(x_ptrs + half, second, mask=x_mask)
    else:
        first = tl.load(x_ptrs, mask=x_mask, other=0.0)
        second = tl.load(x_ptrs + half, mask=x_mask, other=0.0)
        tl.store(y_ptrs, tl.interleave(first, second), mask=y_mask)


def shuffle_channels(x: Tensor, y: Tensor, *, groups: int) -> None:
    """Shuffle the channels of x [N, H, W, C] into y, as torch.nn.ChannelShuffle does.

    Channel j of group i becomes channel j * groups + i. Both may be channel ranges. A shuffle with
    C / groups groups is the inverse.
    """
    if x.numel() == 0:
        return
    channels = x.shape[3] // groups
    if groups == 2:
        _interleave(x, y, inverse=False)
    elif channels == 2:
        _interleave(y, x, inverse=True)
    else:
        _permute_groups(x, y, groups, channels)


def _interleave(x: Tensor, y: Tensor, *, inverse: bool) -> None:
    """y = x with its halves interleaved, or for the inverse x from y."""
    samples, height, width, channels = x.shape
    pixels, half = samples * height * width, channels // 2
    block_c = min(WIDTHS, key=lambda block: triton.cdiv(half, block) * block)
    tiles_c, block_p = triton.cdiv(half, block_c), TILE // block_c
    _interleave_kernel[(triton.cdiv(pixels, block_p) * tiles_c,)](
        x, y, pixels, half, pitch_of(x), pitch_of(y), tiles_c,
        INVERSE=inverse, ALIGN=gcd(16, channels, pitch_of(y)),
        HALF_ALIGN=gcd(16, half, pitch_of(x)), BLOCK_P=block_p, BLOCK_C=block_c,
        num_warps=NUM_WARPS,
    )  # fmt: skip


def _permute_groups(x: Tensor, y: Tensor, groups: int, channels: int) -> None:
    """The shuffle of any number of groups, each of `channels`."""
    src = x.flatten(1, 2).unflatten(2, (groups, channels))  # [N, pixels, groups, channels]
    dst = y.flatten(1, 2).unflatten(2, (channels, groups)).transpose(2, 3)
    if groups > channels:  # tiles go along the longer axis
        src, dst = src.transpose(2, 3), dst.transpose(2, 3)
    permute(src.transpose(1, 2), dst.transpose(1, 2), "ieee")


def shuffle_channels_reference(x: Tensor, y: Tensor, *, groups: int) -> None:
    """Computes `shuffle_channels` in torch."""
    y.copy_(x.unflatten(-1, (groups, -1)).transpose(-1, -2).flatten(-2))

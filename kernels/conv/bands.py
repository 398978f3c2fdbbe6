"""Bands: the input channels that a block of output channels of a convolution in groups reads.

Tensor cores take 64 output channels at a time. Where groups are narrower, or their width is no
multiple of 64, a block of 64 output channels joins several groups. It reads one band of adjacent
input channels, those of all its groups. The weights of a block are zero where an input channel of
the band belongs to another group than the output channel. A convolution in groups thereby is one of
fewer and wider groups. Bands may overlap. The last of them end with the map's channels.

Groups of more than 32 output channels have tiles of their own. A block is one group, and its band
are the group's input channels. The last tile of a group overruns it. Descriptors of outputs have an
axis of groups and one of the channels of a group, behind whose end nothing is stored. Of 112
channels a tile of 128 x 112 computes 1.14 times the products needed; blocks of 64 outputs, which
read bands of 256 channels, would compute 2.29 times.

Products with these zeros cost nothing where bytes bind a layer: 128 channels in 32 groups at 56x56
pixels take 48 us for their bytes and 83 us for their products, of 128 samples in bf16 at 4.3 TB/s
and 712 TFLOP/s (H200, computed 2026-11). In full precision float32 products are as slow as those of
plain cores. There a group is a block, and its own input channels are the band.
"""

import functools
from math import gcd
from typing import Final

import torch
import triton
import triton.language as tl
from triton import cdiv

from ..language.channel_ranges import ALIGNMENT, padded_channels
from .tiles import FEW_CHANNELS, TILE_CHANNELS, Filter, Pair, has_own_tiles, step_channels

WIDE_BLOCK: Final = 128  # output channels of a block where groups have a multiple of them


def filter_of(
    channels: Pair, groups: int, band: int, *, size: Pair, stride: Pair, padding: Pair,
    dilation: Pair,
) -> Filter:  # fmt: skip
    """The filter over maps of these input and output channels, with weights packed for `band`."""
    in_width, out_width = channels[0] // groups, channels[1] // groups
    widths = in_width, out_width
    alone = groups == 1 or (band == in_width and out_width % TILE_CHANNELS != 0)
    block = out_width if alone or has_own_tiles(widths) else _block_of(out_width)
    blocks = cdiv(channels[1], block) if block else groups
    return Filter(size, stride, padding, dilation, blocks, band, block, widths, channels)


def band_channels(channels: Pair, groups: int, dtype: torch.dtype, precision: str) -> int:
    """Input channels of a band, for maps of these input and output channels.

    They are those of one group, or whole steps of 128 bytes for tensor cores.
    """
    in_width, out_width = channels[0] // groups, channels[1] // groups
    exact = dtype == torch.float32 and precision == "ieee"
    aligned = all(each * dtype.itemsize % ALIGNMENT == 0 for each in channels)
    if groups == 1 or exact or not aligned or channels[1] < 2 * FEW_CHANNELS:
        return in_width
    step = step_channels(dtype)
    if has_own_tiles((in_width, out_width)):
        return cdiv(in_width, step) * step
    block = _block_of(out_width)
    firsts = range(0, channels[1], block)
    lasts = (min(first + block, channels[1]) - 1 for first in firsts)
    joined = max(
        last // out_width - first // out_width + 1
        for first, last in zip(firsts, lasts, strict=True)
    )
    return cdiv(joined * in_width, step) * step


def packed_channels(channels: Pair, groups: int, dtype: torch.dtype, precision: str) -> int:
    """Input channels of packed weights: those of a band, or of whole 16 bytes that TMA moves.

    The weights of channels that a map does not have are zero.
    """
    band = band_channels(channels, groups, dtype, precision)
    exact = dtype == torch.float32 and precision == "ieee"
    if groups > 1 or exact or band < FEW_CHANNELS:
        return band
    return padded_channels(band, dtype.itemsize)


def packed_shape(
    shape: tuple[int, int, int, int], groups: int, dtype: torch.dtype, precision: str
) -> tuple[int, int, int, int]:
    """The shape [K, R, S, band] in which `conv2d` takes a weight [K, C/g, R, S]."""
    out_channels, in_width, size_r, size_s = shape
    band = packed_channels((in_width * groups, out_channels), groups, dtype, precision)
    return out_channels, size_r, size_s, band


def packed_shape_grad_input(
    shape: tuple[int, int, int, int], groups: int, dtype: torch.dtype, precision: str
) -> tuple[int, int, int, int]:
    """The shape [C, R, S, band] in which `conv2d_grad_input` takes a weight [K, C/g, R, S].

    Its output channels are the input channels of the convolution.
    """
    out_channels, in_width, size_r, size_s = shape
    in_channels = in_width * groups
    band = packed_channels((out_channels, in_channels), groups, dtype, precision)
    return in_channels, size_r, size_s, band


def _block_of(out_width: int) -> int:
    return WIDE_BLOCK if out_width % WIDE_BLOCK == 0 else TILE_CHANNELS


def first_channel(taps: Filter, block: int) -> int:
    """The input channel at which the band of a block starts."""
    in_width, out_width = taps.widths
    return min(block * taps.out_channels // out_width * in_width, taps.last_band)


@triton.jit
def band_start(k, in_width, out_width, last_band) -> tl.tensor:
    """`first_channel` of the block whose first output channel is k, in a kernel."""
    return tl.minimum(k // out_width * in_width, last_band)


@triton.jit
def first_output(tile, out_width, BLOCK_K: tl.constexpr, BY_GROUP: tl.constexpr) -> tl.tensor:
    """The first output channel of a tile of BLOCK_K, where BY_GROUP each lies in one group."""
    if BY_GROUP:
        tiles = tl.cdiv(out_width, BLOCK_K)
        k = tile // tiles * out_width + tile % tiles * BLOCK_K
    else:
        k = tile * BLOCK_K
    return k


@triton.jit
def tiles_of(out_c, out_width, BLOCK_K: tl.constexpr, BY_GROUP: tl.constexpr) -> tl.tensor:
    """Tiles of BLOCK_K output channels."""
    if BY_GROUP:
        tiles = out_c // out_width * tl.cdiv(out_width, BLOCK_K)
    else:
        tiles = tl.cdiv(out_c, BLOCK_K)
    return tiles


def in_units(taps: Filter, *pitches: int) -> tuple[int, tuple[int, ...]]:
    """A number of channels, and in units of it what kernels that load by pointers take.

    These are the channels of a band and of a block, those of both maps, and the pitches. The number
    divides all of them and the first channel of every band; it is a power of two up to 16.
    """
    sizes = taps.in_channels, taps.out_channels, *taps.channels, *pitches
    unit = gcd(_alignment(taps), *sizes)
    return unit, tuple(size // unit for size in sizes)


@functools.cache
def _alignment(taps: Filter) -> int:
    """A power of two that divides the first channel of every band, up to 16."""
    return gcd(16, *(first_channel(taps, block) for block in range(taps.blocks)))

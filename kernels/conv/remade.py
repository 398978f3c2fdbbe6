"""Maps that a pointwise convolution makes again as it loads what they were made of.

A pointwise convolution, and the gradient of its weight, read each element of its input once for a
block of output channels. Where the input is a normalized or a gated map, the map is made between
load and product, to the bits that its own kernel stores for products. It need not be kept for the
gradient, or not be stored at all.
"""

from math import inf
from typing import Any, Final, NamedTuple, TypeAlias

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.channel_ranges import is_aligned
from ..language.device import capability, holds_large_tiles, shared_nbytes
from ..language.rounding import stored_reference
from ..norm.batch_norm_tiles import normalizer
from ..norm.normalized_again import (
    Normalized,
    normalized_again_reference,
    settings_of_normalizer,
)
from ..pointwise.channel_broadcast import gate_reference
from .tiles import FEW_CHANNELS, WIDE_TILE, Pair, Tile


class Gated(NamedTuple):
    """x times a gate for each sample and channel, as `gate` stores it."""

    gates: Tensor  # [N, C] of x's type and contiguous, C a multiple of 8
    # How x is normalized before; for gradients of weights alone.
    of: Normalized | None = None


MadeBy: TypeAlias = Normalized | Gated
# By maker, the least input channels of a convolution that makes its input in less time than a pass
# of its own takes; and the most tiles of output channels, each of which makes the input once more.
# 16 -> 16 channels @112 normalized would lose 19 us of 268, 32 -> 16 @112 gated 24 of 180, and 256
# -> 1024 @14 of 8 tiles 34 of 78 (256, 128 and 256 samples, H100, 2026-11).
LEAST_CHANNELS: Final = {"normalize": 32, "gate": 96}
MOST_TILES: Final = 2
# In float32 the weight's gradient makes the input in up to three times the time that it sums in:
# 960 -> 160 @7 normalized would lose 30 us of 111, 672 -> 112 @14 gated 106 of 226 (256 samples,
# H200, 2026-11-28).
MOST_CHANNELS_FLOAT32: Final = {"normalize": 512, "gate": 192}
MOST_GATED: Final = 64  # channels of a float32 tile beside gates of each pixel: 128 would spill


def makes_input(
    in_sides: Pair, out_sides: Pair, weight_shape: tuple[int, int, int, int], *,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, dtype: torch.dtype, precision: str,
    pitches: Pair,
) -> bool:  # fmt: skip
    """Whether `conv2d` can make its input: pointwise, by tensor descriptors and tensor cores.

    `pitches` are the channels from one pixel to the next of what is loaded and of the output.
    """
    out_channels, in_channels, *size = weight_shape
    pointwise = (*size, *stride, *padding, groups) == (1, 1, 1, 1, 0, 0, 1)
    channels = in_channels, out_channels
    maps = zip((in_sides, out_sides), channels, pitches, strict=True)
    aligned = all(is_aligned(*each, dtype.itemsize) for each in maps)
    described = aligned and holds_large_tiles() and not (0, 0) < capability() < (9, 0)
    by_cores = dtype == torch.bfloat16 or precision == "tf32"
    return by_cores and pointwise and described and min(channels) >= FEW_CHANNELS


def pays_to_make(
    weight_shape: tuple[int, int, int, int], maker: str, dtype: torch.dtype
) -> bool:  # fmt: skip
    """Whether a convolution of this weight makes its input sooner than a pass of its own."""
    most = MOST_CHANNELS_FLOAT32[maker] if dtype == torch.float32 else inf
    return has_few_tiles(weight_shape) and LEAST_CHANNELS[maker] <= weight_shape[1] <= most


def has_few_tiles(weight_shape: tuple[int, int, int, int]) -> bool:
    """Whether few tiles of outputs each make the input once more."""
    return weight_shape[0] <= MOST_TILES * WIDE_TILE


def stages_beside(tile: Tile, maker: str, itemsize: int) -> int:
    """The stages of a tile of tma.py that shared memory holds beside the map that is made.

    Of gates a stage also holds those of its pixels. Programs share a multiprocessor's memory.
    """
    if not maker:
        return tile.num_stages
    of_pixels = tile.pixels * tile.in_channels
    stage = of_pixels * (2 if maker == "gate" else 1) + tile.out_channels * tile.in_channels
    made_and_stored = of_pixels + tile.pixels * tile.out_channels // tile.parts
    room = shared_nbytes() // (tile.residents * itemsize) - made_and_stored
    return max(2, min(tile.num_stages, room // stage))


@triton.jit
def normalizer_at(source, c, channels, BLOCK_C: tl.constexpr) -> tl.tuple:
    """`normalizer` of BLOCK_C channels from c on."""
    c += tl.arange(0, BLOCK_C)
    return normalizer(source[0], source[1], source[2], c, c < channels, channels)


@triton.jit
def gates_at(gates_ptr, n, c, num_samples, channels, BLOCK_C: tl.constexpr) -> tl.tensor:
    """Gates of BLOCK_C channels from c on, of a sample or of samples [rows, 1]; 0 behind all."""
    c += tl.arange(0, BLOCK_C)[None, :]
    channels = channels // 8 * 8
    return tl.load(gates_ptr + n * channels + c, mask=(c < channels) & (n < num_samples), other=0.0)


@triton.jit
def gated_again(x, gates) -> tl.tensor:
    """x [rows, BLOCK_C] times the gates, in x's type."""
    return (x.to(tl.float32) * gates.to(tl.float32)).to(x.dtype)


def settings_of_maker(made_by: MadeBy | None) -> dict[str, Any]:
    """The arguments of a kernel that say by what it makes its map."""
    if not isinstance(made_by, Gated):
        maker = "" if made_by is None else "normalize"
        return settings_of_normalizer(made_by) | {"MAKER": maker}
    found = settings_of_normalizer(made_by.of)
    if made_by.of is None:
        return found | {"source": (made_by.gates,), "MAKER": "gate"}
    return found | {"source": (*found["source"], made_by.gates), "MAKER": "normalize gate"}


def remade_reference(x: Tensor, made_by: MadeBy | None, precision: str) -> Tensor:
    """The map that was made of x [N, H, W, C] for products of `precision`, in torch."""
    if made_by is None:
        return x
    return stored_reference(_made_reference(x, made_by), x.dtype, precision)


def _made_reference(x: Tensor, made_by: MadeBy) -> Tensor:
    if not isinstance(made_by, Gated):
        return normalized_again_reference(x, made_by)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    gated = normalized_again_reference(x, made_by.of)
    gate_reference(gated.flatten(1, 2), made_by.gates, y.flatten(1, 2))
    return y

"""Where a map is above zero, or NaN, one bit for each value: what a ReLU's gradient asks of it.

Bit i of byte j of a row is that of channel 8 j + i. Kernels move the bits of 32 channels as one
word: of loads of less than four bytes none run ahead of their use.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

BYTE: Final = 8  # channels of a byte
WORD: Final = 32  # channels of a word


@triton.jit
def packed_signs(x, dtype: tl.constexpr) -> tl.tensor:
    """Those of float32 x [R, C] as words of this type, [R, C / bits of a word]."""
    BITS: tl.constexpr = dtype.primitive_bitwidth
    passing = tl.where(x <= 0, 0, 1).to(tl.uint32).reshape(x.shape[0], x.shape[1] // BITS, BITS)
    return tl.sum(passing << tl.arange(0, BITS).to(tl.uint32)[None, None, :], 2).to(dtype)


@triton.jit
def passes(signs) -> tl.tensor:
    """Where the bits of words [R, W] are ones: [R, C]."""
    BITS: tl.constexpr = signs.dtype.primitive_bitwidth
    passing = signs[:, :, None] >> tl.arange(0, BITS)[None, None, :] & 1
    return (passing != 0).reshape(signs.shape[0], signs.shape[1] * BITS)


def words_of(signs: Tensor, channels: int) -> Tensor:
    """Signs, uint8 [..., C / 8], as the words that kernels move."""
    return signs.view(torch.int32) if channels % WORD == 0 else signs


def packed_signs_reference(maps: Tensor) -> Tensor:
    """The signs of maps [..., C], uint8 [..., C / 8]."""
    places = torch.arange(BYTE, device=maps.device)
    passing = (~(maps <= 0)).long().unflatten(-1, (-1, BYTE))
    return (passing << places).sum(-1).to(torch.uint8)


def passes_reference(signs: Tensor) -> Tensor:
    """Where the signs of maps are ones, [..., C]."""
    places = torch.arange(BYTE, device=signs.device)
    return (signs.long()[..., None] >> places & 1).flatten(-2) != 0

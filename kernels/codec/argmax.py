"""Argmax codes: the tap of each pooling window's maximum, packed into bytes.

Taps count row by row. A code has 2 bits for windows of up to 4 taps, and 4 bits for up to 16. One
byte holds the codes of A_BYTE consecutive channels, 4 or 2, the first in the lowest bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.map_tiles import Pair


@triton.jit
def bytes_of_row(tiles_c, BLOCK_C: tl.constexpr, A_BYTE: tl.constexpr) -> tl.tensor:
    """Offsets [1, BLOCK_C // A_BYTE] within a pixel of the bytes that hold a tile's codes."""
    first = (tl.program_id(0) % tiles_c) * (BLOCK_C // A_BYTE)
    return first + tl.arange(0, BLOCK_C // A_BYTE)[None, :]


@triton.jit
def packed_codes(codes, A_BYTE: tl.constexpr) -> tl.tensor:
    """Codes [W, C] packed into bytes [W, C // A_BYTE]."""
    shifts = tl.arange(0, A_BYTE) * (8 // A_BYTE)
    members = codes.reshape(codes.shape[0], codes.shape[1] // A_BYTE, A_BYTE)
    return tl.sum(members << shifts[None, None, :], 2).to(tl.uint8)


@triton.jit
def is_code(packed, code, A_BYTE: tl.constexpr) -> tl.tensor:
    """Whether each channel's code in bytes [W, C // A_BYTE] equals `code`: bool [W, C]."""
    shifts = tl.arange(0, A_BYTE) * (8 // A_BYTE)
    everywhere = code * (0x11 if A_BYTE == 2 else 0x55)
    differing = (packed.to(tl.int32) ^ everywhere)[:, :, None]
    members = differing & (((1 << 8 // A_BYTE) - 1) << shifts)[None, None, :]
    return (members == 0).reshape(packed.shape[0], packed.shape[1] * A_BYTE)


def channels_a_byte(kernel: Pair) -> int:
    """Channels whose codes share a byte, for windows of these sides."""
    return 4 if kernel[0] * kernel[1] <= 4 else 2


def pack(codes: Tensor, a_byte: int) -> Tensor:
    """Codes [..., C] packed into bytes [..., C // a_byte], of an integer type."""
    shifts = torch.arange(a_byte, device=codes.device) * (8 // a_byte)
    return (codes.unflatten(-1, (-1, a_byte)) << shifts).sum(-1)


def unpack(packed: Tensor, a_byte: int) -> Tensor:
    """The int64 codes [..., C] that bytes [..., C // a_byte] hold."""
    shifts = torch.arange(a_byte, device=packed.device) * (8 // a_byte)
    members = packed.long()[..., None] >> shifts & ((1 << 8 // a_byte) - 1)
    return members.flatten(-2)

"""Codes of where in their windows maxima lie, as bytes.

A code is a tap, row by row: 2 bits for windows of up to 4 taps, else 4 bits for up to 16. Channel j
of a byte's channels has the bits from 2 j, or from 4 j, on. A_BYTE are the channels of a byte.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.map_tiles import Pair


@triton.jit
def bytes_of_row(tiles_c, BLOCK_C: tl.constexpr, A_BYTE: tl.constexpr) -> tl.tensor:
    """Places [1, BLOCK_C // A_BYTE] in a pixel of the bytes with the codes of a tile's channels."""
    first = (tl.program_id(0) % tiles_c) * (BLOCK_C // A_BYTE)
    return first + tl.arange(0, BLOCK_C // A_BYTE)[None, :]


@triton.jit
def packed_codes(codes, A_BYTE: tl.constexpr) -> tl.tensor:
    """Codes [W, C] as bytes [W, C // A_BYTE]."""
    shifts = tl.arange(0, A_BYTE) * (8 // A_BYTE)
    members = codes.reshape(codes.shape[0], codes.shape[1] // A_BYTE, A_BYTE)
    return tl.sum(members << shifts[None, None, :], 2).to(tl.uint8)


@triton.jit
def is_code(packed, code, A_BYTE: tl.constexpr) -> tl.tensor:
    """Where bytes [W, C // A_BYTE] hold a code: [W, C]."""
    shifts = tl.arange(0, A_BYTE) * (8 // A_BYTE)
    everywhere = code * (0x11 if A_BYTE == 2 else 0x55)
    differing = (packed.to(tl.int32) ^ everywhere)[:, :, None]
    members = differing & (((1 << 8 // A_BYTE) - 1) << shifts)[None, None, :]
    return (members == 0).reshape(packed.shape[0], packed.shape[1] * A_BYTE)


def channels_a_byte(kernel: Pair) -> int:
    """Channels whose codes share a byte."""
    return 4 if kernel[0] * kernel[1] <= 4 else 2


def pack(codes: Tensor, a_byte: int) -> Tensor:
    """Codes [..., C] as bytes [..., C // a_byte]."""
    shifts = torch.arange(a_byte, device=codes.device) * (8 // a_byte)
    return (codes.unflatten(-1, (-1, a_byte)) << shifts).sum(-1)


def unpack(packed: Tensor, a_byte: int) -> Tensor:
    """The codes [..., C] in bytes [..., C // a_byte]."""
    shifts = torch.arange(a_byte, device=packed.device) * (8 // a_byte)
    members = packed.long()[..., None] >> shifts & ((1 << 8 // a_byte) - 1)
    return members.flatten(-2)

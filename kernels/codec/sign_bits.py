"""Sign bits: one bit for each value of a map, set where the value is above zero or NaN.

The gradient of a ReLU needs no more of its output. Bit i of byte j of a pixel is that of channel
8 j + i. Kernels load the bits of 32 channels as one word. The compiler does not pipeline loads of
fewer than four bytes.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.elementwise import BLOCK, NUM_WARPS

BYTE: Final = 8  # channels whose bits share a byte
WORD: Final = 32  # channels whose bits share a word


@triton.jit
def packed_signs(x, dtype: tl.constexpr) -> tl.tensor:
    """The sign bits of float32 x [R, C], packed into words of `dtype`: [R, C / bits of a word]."""
    BITS: tl.constexpr = dtype.primitive_bitwidth
    passing = tl.where(x <= 0, 0, 1).to(tl.uint32).reshape(x.shape[0], x.shape[1] // BITS, BITS)
    return tl.sum(passing << tl.arange(0, BITS).to(tl.uint32)[None, None, :], 2).to(dtype)


@triton.jit
def passes(signs) -> tl.tensor:
    """Where the sign bits in words [R, W] are set: bool [R, W * bits of a word]."""
    BITS: tl.constexpr = signs.dtype.primitive_bitwidth
    passing = signs[:, :, None] >> tl.arange(0, BITS)[None, None, :] & 1
    return (passing != 0).reshape(signs.shape[0], signs.shape[1] * BITS)


@triton.jit(do_not_specialize=["nbytes"])
def _encode_kernel(raw_ptr, coded_ptr, nbytes, ROWS: tl.constexpr):
    """A program makes ROWS bytes, each of 8 adjacent values."""
    rows = tl.arange(0, ROWS)
    start = tl.program_id(0).to(tl.int64) * ROWS
    mask = rows < tl.minimum(nbytes - start, ROWS).to(tl.int32)
    offs = rows[:, None] * 8 + tl.arange(0, 8)[None, :]
    exists = tl.broadcast_to(mask[:, None], ROWS, 8)
    x = tl.load(raw_ptr + start * 8 + offs, mask=exists, other=0.0).to(tl.float32)
    tl.store(coded_ptr + start + rows, packed_signs(x, tl.uint8).reshape(ROWS), mask=mask)


def sign_bits_encode(raw: Tensor, coded: Tensor) -> None:
    """The sign bits of contiguous rows [rows, C] of whole bytes, uint8 [rows, C / 8]."""
    nbytes = coded.numel()
    if nbytes == 0:
        return
    rows = BLOCK // BYTE
    _encode_kernel[(triton.cdiv(nbytes, rows),)](raw, coded, nbytes, ROWS=rows, num_warps=NUM_WARPS)


def sign_bits_encode_reference(raw: Tensor, coded: Tensor) -> None:
    coded.copy_(packed_signs_reference(raw))


def words_of(signs: Tensor, channels: int) -> Tensor:
    """Sign bits uint8 [..., C / 8] viewed as the words that kernels load, int32 where they fit."""
    return signs.view(torch.int32) if channels % WORD == 0 else signs


def packed_signs_reference(maps: Tensor) -> Tensor:
    """The sign bits of maps [..., C], uint8 [..., C / 8]."""
    places = torch.arange(BYTE, device=maps.device)
    passing = (~(maps <= 0)).long().unflatten(-1, (-1, BYTE))
    return (passing << places).sum(-1).to(torch.uint8)


def passes_reference(signs: Tensor) -> Tensor:
    """Where sign bits uint8 [..., C / 8] are set, bool [..., C]."""
    places = torch.arange(BYTE, device=signs.device)
    return (signs.long()[..., None] >> places & 1).flatten(-2) != 0

"""TF32 codes: the 18 bits of a float32 value behind a ReLU that rounding to TF32 leaves.

The sign and the 13 low bits are zero, of NaN too (`language/rounding.py`). A code holds the 16 high
bits of each value behind the sign, then the 2 low bits, those of four values in a byte.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.elementwise import BLOCK, NUM_WARPS

FOUR: Final = tl.constexpr(4)  # values whose low bits share a byte
LOW: Final = tl.constexpr(13)  # low bits of zero


@triton.jit
def _offsets(BLOCK: tl.constexpr) -> tl.tuple:
    """Offsets of a program's values [BLOCK / 4, 4] and bytes [BLOCK / 4], and its first byte."""
    rows = tl.arange(0, BLOCK // FOUR)
    offs = rows[:, None] * FOUR + tl.arange(0, FOUR)[None, :]
    return offs, rows, tl.program_id(0).to(tl.int64) * (BLOCK // FOUR)


@triton.jit
def _masks(offs, rows, start, numel, WHOLE: tl.constexpr) -> tl.tuple:
    """Which values and bytes exist; WHOLE: the values are a multiple of 4."""
    left = tl.minimum(numel - start * FOUR, offs.shape[0] * FOUR).to(tl.int32)
    bytes_exist = rows < tl.cdiv(left, FOUR)
    exist = tl.broadcast_to(bytes_exist[:, None], offs.shape) if WHOLE else offs < left
    return exist, bytes_exist


@triton.jit
def tf32_codes(bits) -> tl.tuple:
    """The high bits int16 [R, 4] and low bits uint8 [R] of values' bits int32 [R, 4]."""
    bits = bits.to(tl.uint32, bitcast=True)
    shifts = (2 * tl.arange(0, FOUR)).to(tl.uint32)[None, :]
    low = tl.sum(((bits >> LOW) & 3) << shifts, 1).to(tl.uint8)
    return (bits >> (LOW + 2)).to(tl.int16), low


@triton.jit(do_not_specialize=["numel"])
def _encode_kernel(raw_ptr, high_ptr, low_ptr, numel, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    offs, rows, start = _offsets(BLOCK)
    exist, bytes_exist = _masks(offs, rows, start, numel, WHOLE)
    high, low = tf32_codes(tl.load(raw_ptr + start * FOUR + offs, mask=exist, other=0))
    tl.store(high_ptr + start * FOUR + offs, high, mask=exist)
    tl.store(low_ptr + start + rows, low, mask=bytes_exist)


@triton.jit(do_not_specialize=["numel"])
def _decode_kernel(high_ptr, low_ptr, raw_ptr, numel, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    offs, rows, start = _offsets(BLOCK)
    exist, bytes_exist = _masks(offs, rows, start, numel, WHOLE)
    high = tl.load(high_ptr + start * FOUR + offs, mask=exist, other=0)
    low = tl.load(low_ptr + start + rows, mask=bytes_exist, other=0).to(tl.uint32)
    shifts = (2 * tl.arange(0, FOUR)).to(tl.uint32)[None, :]
    bits = high.to(tl.uint16, bitcast=True).to(tl.uint32) << (LOW + 2)
    bits |= ((low[:, None] >> shifts) & 3) << LOW
    tl.store(raw_ptr + start * FOUR + offs, bits.to(tl.int32, bitcast=True), mask=exist)


def tf32_nbytes(numel: int) -> int:
    """Bytes of the code of a section of this many values."""
    return 2 * numel + triton.cdiv(numel, FOUR.value)


def tf32_parts(coded: Tensor, raw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The high bits int16 and low bits uint8 of a code, and the bits int32 of values."""
    numel = raw.numel()
    high, low = coded.split([2 * numel, tf32_nbytes(numel) - 2 * numel])
    return high.view(torch.int16), low, raw.view(torch.int32).view(-1)


def tf32_encode(raw: Tensor, coded: Tensor) -> None:
    """Encode a contiguous section as uint8 [tf32_nbytes]. No bit that the code drops is set."""
    if raw.numel() == 0:
        return
    high, low, bits = tf32_parts(coded, raw)
    numel = bits.numel()
    _encode_kernel[(triton.cdiv(numel, BLOCK),)](
        bits, high, low, numel, WHOLE=numel % FOUR.value == 0, BLOCK=BLOCK, num_warps=NUM_WARPS
    )


def tf32_decode(coded: Tensor, raw: Tensor) -> None:
    """Decode what `tf32_encode` made of a section of the same size."""
    if raw.numel() == 0:
        return
    high, low, bits = tf32_parts(coded, raw)
    numel = bits.numel()
    _decode_kernel[(triton.cdiv(numel, BLOCK),)](
        high, low, bits, numel, WHOLE=numel % FOUR.value == 0, BLOCK=BLOCK, num_warps=NUM_WARPS
    )


def tf32_encode_reference(raw: Tensor, coded: Tensor) -> None:
    high, low, bits = tf32_parts(coded, raw)
    high.copy_((bits >> (LOW.value + 2)).to(torch.int16))
    fours = bits.new_zeros(low.numel() * FOUR.value)
    fours[: bits.numel()] = bits >> LOW.value & 3
    shifts = 2 * torch.arange(FOUR.value, device=raw.device)
    low.copy_((fours.view(-1, FOUR.value).long() << shifts).sum(1))


def tf32_decode_reference(coded: Tensor, raw: Tensor) -> None:
    high, low, bits = tf32_parts(coded, raw)
    shifts = 2 * torch.arange(FOUR.value, device=raw.device)
    fours = (low.long()[:, None] >> shifts & 3).flatten()[: bits.numel()]
    bits.copy_((high.long() & 0xFFFF) << (LOW.value + 2) | fours << LOW.value)

"""FP16 codes: float32 values as IEEE halves, with 5 bits of exponent and 10 of mantissa.

Rounding is to the nearest, ties to even. Small values become subnormal or zero. Infinities and what
is too large become 65504. Every NaN has one code, and is decoded to the bits of NAN.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.elementwise import block_at, launch, load_block, store_block
from ..language.rounding import NAN

LARGEST: Final = tl.constexpr(65504.0)
HALF_NAN: Final = tl.constexpr(0x7E00)  # the code of NaN
HALF_INFINITE: Final = tl.constexpr(0x7C00)  # the half of infinity, which no code is
HALF_MAGNITUDE: Final = tl.constexpr(0x7FFF)  # bits of a half but the sign


@triton.jit
def half_codes(x) -> tl.tensor:
    """The codes int16 of float32 values."""
    halves = tl.clamp(x, -LARGEST, LARGEST).to(tl.float16).to(tl.int16, bitcast=True)
    return tl.where(x == x, halves, HALF_NAN).to(tl.int16)


@triton.jit(do_not_specialize=["numel"])
def _encode_kernel(raw_ptr, coded_ptr, numel, BLOCK: tl.constexpr):
    start, offs, mask, is_whole = block_at(numel, BLOCK)
    raw, coded = raw_ptr + start + offs, coded_ptr + start + offs
    x = load_block(raw, mask, is_whole, "")
    store_block(coded, half_codes(x), mask, is_whole)


@triton.jit(do_not_specialize=["numel"])
def _decode_kernel(coded_ptr, raw_ptr, numel, BLOCK: tl.constexpr):
    start, offs, mask, is_whole = block_at(numel, BLOCK)
    raw, coded = raw_ptr + start + offs, coded_ptr + start + offs
    codes = load_block(coded, mask, is_whole, "")
    values = codes.to(tl.float16, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True)
    bits = tl.where((codes & HALF_MAGNITUDE) > HALF_INFINITE, NAN, values)
    store_block(raw, bits, mask, is_whole)


def fp16_encode(raw: Tensor, coded: Tensor) -> None:
    """Encode a contiguous map of float32 as uint8, two bytes a value."""
    launch(_encode_kernel, raw.view(-1), coded.view(-1).view(torch.int16))


def fp16_decode(coded: Tensor, raw: Tensor) -> None:
    """Decode what `fp16_encode` made of a map of the same size."""
    launch(_decode_kernel, coded.view(-1).view(torch.int16), raw.view(torch.int32).view(-1))


def fp16_encode_reference(raw: Tensor, coded: Tensor) -> None:
    halves = raw.view(-1).clamp(-LARGEST.value, LARGEST.value).half().view(torch.int16)
    codes = torch.where(raw.view(-1).isnan(), HALF_NAN.value, halves)
    coded.view(-1).view(torch.int16).copy_(codes)


def fp16_decode_reference(coded: Tensor, raw: Tensor) -> None:
    halves = coded.view(-1).view(torch.float16)
    bits = torch.where(halves.isnan(), NAN.value, halves.float().view(torch.int32))
    raw.view(torch.int32).view(-1).copy_(bits)

"""FP8 codes: values as floats of 1 sign, 4 bits of exponent and 3 of mantissa, up to 448.

The format is that of Gist's DPR, and the E4M3 of the Open Compute Project. `small_floats.py` says
how values are rounded. Between 2^-6 and 448 the relative error is at most 1/16.
"""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from ..language.device import capability
from ..language.elementwise import block_at, launch, load_block, store_block
from .small_floats import (
    bits_of,
    narrow_bits,
    narrow_bits_reference,
    small_bits,
    small_bits_reference,
    small_codes,
    small_codes_reference,
    wide_bits,
)

E: Final = tl.constexpr(4)  # bits of exponent
M: Final = tl.constexpr(3)  # bits of mantissa
# The least capability whose GPUs have an instruction that rounds to this format, with the largest
# value for what is too large. 64 MiB of bfloat16 take 38.4 us by it, and 45.3 without (H100,
# 2026-11-26).
CONVERTS: Final = (8, 9)
STORE_NBYTES: Final = tl.constexpr(8)  # of a thread, which loads 16 bytes of bfloat16


@triton.jit(do_not_specialize=["numel"])
def _encode_kernel(raw_ptr, coded_ptr, numel, HARDWARE: tl.constexpr, BLOCK: tl.constexpr):
    start, offs, mask, is_whole = block_at(numel, BLOCK)
    bits = load_block(raw_ptr + start + offs, mask, is_whole, "evict_first")
    if HARDWARE:
        wide = wide_bits(bits).to(tl.float32, bitcast=True)
        codes = wide.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    else:
        codes = small_codes(wide_bits(bits), E, M).to(tl.uint8)
    stores = tl.max_contiguous(offs, STORE_NBYTES)
    store_block(coded_ptr + start + stores, codes, mask, is_whole)


@triton.jit(do_not_specialize=["numel"])
def _decode_kernel(coded_ptr, raw_ptr, numel, BLOCK: tl.constexpr):
    start, offs, mask, is_whole = block_at(numel, BLOCK)
    codes = load_block(coded_ptr + start + offs, mask, is_whole, "")
    bits = narrow_bits(small_bits(codes.to(tl.int32), E, M), raw_ptr.dtype.element_ty)
    store_block(raw_ptr + start + offs, bits, mask, is_whole)


def fp8_encode(raw: Tensor, coded: Tensor) -> None:
    """Encode a contiguous map of float32 or bfloat16 as uint8, a byte a value."""
    hardware = capability() >= CONVERTS
    launch(_encode_kernel, bits_of(raw), coded.view(-1), HARDWARE=hardware)


def fp8_decode(coded: Tensor, raw: Tensor) -> None:
    """Decode what `fp8_encode` made of a map of the same size."""
    launch(_decode_kernel, coded.view(-1), bits_of(raw))


def fp8_encode_reference(raw: Tensor, coded: Tensor) -> None:
    coded.view(-1).copy_(small_codes_reference(raw, E.value, M.value))


def fp8_decode_reference(coded: Tensor, raw: Tensor) -> None:
    bits = small_bits_reference(coded.view(-1).long(), E.value, M.value)
    bits_of(raw).copy_(narrow_bits_reference(bits, bits_of(raw).dtype))

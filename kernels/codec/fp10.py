"""FP10 codes: values as floats of 1 sign, 5 bits of exponent and 4 of mantissa, three in 32 bits.

The format is that of Gist's DPR. `small_floats.py` says how values are rounded. Between 2^-14 and
122,880 the relative error is at most 1/32. A block of 3 N values has N words. Word i holds values
i, N + i and 2 N + i of the block, the first in the low bits. All loads are of neighbours.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

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

E: Final = tl.constexpr(5)  # bits of exponent
M: Final = tl.constexpr(4)  # bits of mantissa
BITS: Final = tl.constexpr(10)  # of a code
CODE: Final = tl.constexpr((1 << 10) - 1)  # mask of a code
WORDS: Final = 2048  # of a block
NUM_WARPS: Final = 8


@triton.jit
def _block(raw_ptr, words_ptr, block, numel, WORDS: tl.constexpr) -> tl.tuple:
    """Pointers to a block's first values and to its words, the number of words, values left."""
    start = block.to(tl.int64) * WORDS
    left = tl.minimum(numel - 3 * start, 3 * WORDS).to(tl.int32)
    offs = tl.arange(0, WORDS)
    return raw_ptr + 3 * start + offs, words_ptr + start + offs, tl.cdiv(left, 3), left, offs


@triton.jit
def _codes(ptrs, mask, is_whole) -> tl.tensor:
    bits = tl.load(ptrs) if is_whole else tl.load(ptrs, mask=mask, other=0)
    return small_codes(wide_bits(bits), E, M)


@triton.jit
def fp10_encode_block(raw_ptr, words_ptr, block, numel, WORDS: tl.constexpr) -> None:
    raw, words, count, left, offs = _block(raw_ptr, words_ptr, block, numel, WORDS)
    if left == 3 * WORDS:
        packed = _codes(raw, None, True)
        packed |= _codes(raw + WORDS, None, True) << BITS
        packed |= _codes(raw + 2 * WORDS, None, True) << (2 * BITS)
        tl.store(words, packed)
    else:
        exist = offs < count
        packed = _codes(raw, exist, False)
        packed |= _codes(raw + count, exist & (count + offs < left), False) << BITS
        packed |= _codes(raw + 2 * count, exist & (2 * count + offs < left), False) << (2 * BITS)
        tl.store(words, packed, mask=exist)


@triton.jit(do_not_specialize=["numel"])
def _encode_kernel(raw_ptr, words_ptr, numel, WORDS: tl.constexpr):
    fp10_encode_block(raw_ptr, words_ptr, tl.program_id(0), numel, WORDS)


@triton.jit(do_not_specialize=["numel"])
def _decode_kernel(words_ptr, raw_ptr, numel, WORDS: tl.constexpr):
    raw, words, count, left, offs = _block(raw_ptr, words_ptr, tl.program_id(0), numel, WORDS)
    dtype: tl.constexpr = raw_ptr.dtype.element_ty
    if left == 3 * WORDS:
        packed = tl.load(words)
        for part in tl.static_range(3):
            codes = (packed >> (part * BITS)) & CODE
            tl.store(raw + part * WORDS, narrow_bits(small_bits(codes, E, M), dtype))
    else:
        exist = offs < count
        packed = tl.load(words, mask=exist, other=0)
        for part in tl.static_range(3):
            codes = (packed >> (part * BITS)) & CODE
            mask = exist & (part * count + offs < left)
            tl.store(raw + part * count, narrow_bits(small_bits(codes, E, M), dtype), mask=mask)


def fp10_nbytes(numel: int) -> int:
    """Bytes of the code of a section of this many values."""
    return 4 * triton.cdiv(numel, 3)


def fp10_words(coded: Tensor, raw: Tensor) -> Tensor:
    """The words int32 of a code. Bytes are left over where rows are no multiples of 3 values."""
    return coded[: fp10_nbytes(raw.numel())].view(torch.int32)


def fp10_encode(raw: Tensor, coded: Tensor) -> None:
    """Encode a contiguous section of float32 or bfloat16 as uint8 [fp10_nbytes or more]."""
    words, bits = fp10_words(coded, raw), bits_of(raw)
    if len(bits):
        grid = (triton.cdiv(len(words), WORDS),)
        _encode_kernel[grid](bits, words, len(bits), WORDS=WORDS, num_warps=NUM_WARPS)


def fp10_decode(coded: Tensor, raw: Tensor) -> None:
    """Decode what `fp10_encode` made of a section of the same size."""
    words, bits = fp10_words(coded, raw), bits_of(raw)
    if len(bits):
        grid = (triton.cdiv(len(words), WORDS),)
        _decode_kernel[grid](words, bits, len(bits), WORDS=WORDS, num_warps=NUM_WARPS)


def _parts(numel: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """By value, the number of its word and the shift of its code there."""
    places = torch.arange(numel, device=device)
    block, inside = places // (3 * WORDS), places % (3 * WORDS)
    count = ((numel - block * 3 * WORDS).clamp(max=3 * WORDS) + 2) // 3
    return block * WORDS + inside % count, inside // count * BITS.value


def fp10_encode_reference(raw: Tensor, coded: Tensor) -> None:
    words, (numbers, shifts) = fp10_words(coded, raw), _parts(raw.numel(), raw.device)
    codes = small_codes_reference(raw, E.value, M.value) << shifts
    packed = torch.zeros(len(words), dtype=torch.int64, device=raw.device)
    words.copy_(packed.index_add_(0, numbers, codes))


def fp10_decode_reference(coded: Tensor, raw: Tensor) -> None:
    words, (numbers, shifts) = fp10_words(coded, raw), _parts(raw.numel(), raw.device)
    codes = words.long()[numbers] >> shifts & CODE.value
    bits = small_bits_reference(codes, E.value, M.value)
    bits_of(raw).copy_(narrow_bits_reference(bits, bits_of(raw).dtype))

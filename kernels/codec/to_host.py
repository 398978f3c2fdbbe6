"""Encoding straight to pinned host memory: few programs read a section, and store its code there.

The other multiprocessors stay with the kernels that run beside. Codes are those of the codecs'
other encoders, bit for bit. Codes whose size depends on the values have none: the bitmap encoder
reaches 21 to 29 GB/s this way, and convolutions beside it take two to three times as long (H100,
bench/encode_to_host.py, 2026-11-26).
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from .fp8 import E as FP8_E
from .fp8 import M as FP8_M
from .fp8 import fp8_encode_reference
from .fp10 import WORDS, fp10_encode_block, fp10_encode_reference, fp10_words
from .fp16 import fp16_encode_reference, half_codes
from .sign_bits import packed_signs, sign_bits_encode_reference, words_of
from .small_floats import bits_of, small_codes, wide_bits
from .tf32 import FOUR, tf32_codes, tf32_encode_reference, tf32_parts

PROGRAMS: Final = 4
BLOCK: Final = 16384  # values of a step of a program
NUM_WARPS: Final = 16


@triton.jit(do_not_specialize=["numel"])
def _tf32_kernel(raw_ptr, high_ptr, low_ptr, numel, BLOCK: tl.constexpr):
    rows = tl.arange(0, BLOCK // FOUR)
    offs = rows[:, None] * FOUR + tl.arange(0, FOUR)[None, :]
    start = tl.program_id(0).to(tl.int64) * (BLOCK // FOUR)
    for _ in range(tl.program_id(0), tl.cdiv(numel, BLOCK), tl.num_programs(0)):
        if start * FOUR + BLOCK <= numel:
            high, low = tf32_codes(tl.load(raw_ptr + start * FOUR + offs))
            tl.store(high_ptr + start * FOUR + offs, high)
            tl.store(low_ptr + start + rows, low)
        else:
            left = numel - start * FOUR
            bits = tl.load(raw_ptr + start * FOUR + offs, mask=offs < left, other=0)
            high, low = tf32_codes(bits)
            tl.store(high_ptr + start * FOUR + offs, high, mask=offs < left)
            tl.store(low_ptr + start + rows, low, mask=rows * FOUR < left)
        start += tl.num_programs(0).to(tl.int64) * (BLOCK // FOUR)


@triton.jit
def _codes_of(x, CODEC: tl.constexpr, dtype: tl.constexpr) -> tl.tensor:
    """The codes, one of each value, of float32 values or of the bits of values."""
    codes = half_codes(x) if CODEC == "fp16" else small_codes(wide_bits(x), FP8_E, FP8_M)
    return codes.to(dtype)


@triton.jit(do_not_specialize=["numel"])
def _values_kernel(raw_ptr, coded_ptr, numel, CODEC: tl.constexpr, BLOCK: tl.constexpr):
    dtype: tl.constexpr = coded_ptr.dtype.element_ty
    offs = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    for _ in range(tl.program_id(0), tl.cdiv(numel, BLOCK), tl.num_programs(0)):
        raw, coded = raw_ptr + start + offs, coded_ptr + start + offs
        if start + BLOCK <= numel:
            tl.store(coded, _codes_of(tl.load(raw), CODEC, dtype))
        else:
            mask = offs < numel - start
            tl.store(coded, _codes_of(tl.load(raw, mask=mask, other=0), CODEC, dtype), mask=mask)
        start += tl.num_programs(0).to(tl.int64) * BLOCK


@triton.jit(do_not_specialize=["numel"])
def _fp10_kernel(raw_ptr, words_ptr, numel, WORDS: tl.constexpr):
    block = tl.program_id(0).to(tl.int64)
    for _ in range(tl.program_id(0), tl.cdiv(numel, 3 * WORDS), tl.num_programs(0)):
        fp10_encode_block(raw_ptr, words_ptr, block, numel, WORDS)
        block += tl.num_programs(0)


@triton.jit(do_not_specialize=["num_words"])
def _sign_bits_kernel(raw_ptr, words_ptr, num_words, BLOCK: tl.constexpr):
    dtype: tl.constexpr = words_ptr.dtype.element_ty
    BITS: tl.constexpr = dtype.primitive_bitwidth
    words = tl.arange(0, BLOCK // BITS)[:, None]
    offs = words * BITS + tl.arange(0, BITS)[None, :]
    first = tl.program_id(0).to(tl.int64) * (BLOCK // BITS)
    for _ in range(tl.program_id(0), tl.cdiv(num_words, BLOCK // BITS), tl.num_programs(0)):
        mask = words < num_words - first
        x = tl.load(raw_ptr + first * BITS + offs, mask=mask, other=0.0).to(tl.float32)
        tl.store(words_ptr + first + words, packed_signs(x, dtype), mask=mask)
        first += tl.num_programs(0).to(tl.int64) * (BLOCK // BITS)


def tf32_encode_to_host(raw: Tensor, coded: Tensor, *, programs: int = PROGRAMS) -> None:
    """`tf32_encode` to pinned memory."""
    if raw.numel() == 0:
        return
    high, low, bits = tf32_parts(coded, raw)
    _tf32_kernel[(programs,)](bits, high, low, bits.numel(), BLOCK=BLOCK, num_warps=NUM_WARPS)


def fp16_encode_to_host(raw: Tensor, coded: Tensor, *, programs: int = PROGRAMS) -> None:
    """`fp16_encode` to pinned memory."""
    codes = coded.view(-1).view(torch.int16)
    _values_kernel[(programs,)](
        raw.view(-1), codes, raw.numel(), CODEC="fp16", BLOCK=BLOCK, num_warps=NUM_WARPS
    )


def fp10_encode_to_host(raw: Tensor, coded: Tensor, *, programs: int = PROGRAMS) -> None:
    """`fp10_encode` to pinned memory."""
    words, bits = fp10_words(coded, raw), bits_of(raw)
    if len(bits):
        _fp10_kernel[(programs,)](bits, words, len(bits), WORDS=WORDS, num_warps=NUM_WARPS)


def fp8_encode_to_host(raw: Tensor, coded: Tensor, *, programs: int = PROGRAMS) -> None:
    """`fp8_encode` to pinned memory."""
    _values_kernel[(programs,)](
        bits_of(raw), coded.view(-1), raw.numel(), CODEC="fp8", BLOCK=BLOCK, num_warps=NUM_WARPS
    )


def sign_bits_encode_to_host(raw: Tensor, coded: Tensor, *, programs: int = PROGRAMS) -> None:
    """`sign_bits_encode` to pinned memory."""
    words = words_of(coded, raw.shape[-1])
    _sign_bits_kernel[(programs,)](raw, words, words.numel(), BLOCK=BLOCK, num_warps=NUM_WARPS)


def tf32_encode_to_host_reference(raw: Tensor, coded: Tensor, *, programs: int = PROGRAMS) -> None:
    tf32_encode_reference(raw, coded)


def fp16_encode_to_host_reference(raw: Tensor, coded: Tensor, *, programs: int = PROGRAMS) -> None:
    fp16_encode_reference(raw, coded)


def fp10_encode_to_host_reference(raw: Tensor, coded: Tensor, *, programs: int = PROGRAMS) -> None:
    fp10_encode_reference(raw, coded)


def fp8_encode_to_host_reference(raw: Tensor, coded: Tensor, *, programs: int = PROGRAMS) -> None:
    fp8_encode_reference(raw, coded)


def sign_bits_encode_to_host_reference(
    raw: Tensor, coded: Tensor, *, programs: int = PROGRAMS
) -> None:
    sign_bits_encode_reference(raw, coded)

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

BYTE: Final = 8  # channels whose bits share a byte
WORD: Final = 32  # channels whose bits share a word
# Bytes of sign bits of a program that packs them. 64 MiB of bfloat16 take 29.3 us, with loads that
# the L2 cache keeps 33.1 (H100, 2026-11-26).
ROWS: Final = 512
NUM_WARPS: Final = 8


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


@triton.jit
def _signs_of_halves(words) -> tl.tensor:
    """The sign bits of bfloat16 values, uint32 [R], of words [R, 4] that hold two values each.

    Sums carry into the highest bit of a half where it is not 0, or NaN. Behind the shifts the even
    values of a row have bits 9, 11, 13 and 15, the odd ones 25, 27, 29 and 31.
    """
    x = words.to(tl.uint32, bitcast=True)
    magnitudes = x & 0x7FFF7FFF
    passing = ((magnitudes + 0x7FFF7FFF) & (x ^ 0xFFFFFFFF)) | (magnitudes + 0x007F007F)
    shifts = (6 - 2 * tl.arange(0, 4)).to(tl.uint32)[None, :]
    spread = tl.sum((passing & 0x80008000) >> shifts, 1)
    return ((spread >> 9) & 0x55) | ((spread >> 24) & 0xAA)


@triton.jit(do_not_specialize=["num_bytes"])
def _encode_kernel(raw_ptr, coded_ptr, num_bytes, HALF: tl.constexpr, ROWS: tl.constexpr):
    """A program packs the sign bits of 8 * ROWS values, a byte to a row.

    `raw_ptr` is one of words that hold two values each (HALF), or of float32.
    """
    A_BYTE: tl.constexpr = 4 if HALF else 8
    start = tl.program_id(0).to(tl.int64) * ROWS
    rows = tl.arange(0, ROWS)
    mask = rows < num_bytes - start
    ptrs = raw_ptr + start * A_BYTE + (rows[:, None] * A_BYTE + tl.arange(0, A_BYTE)[None, :])
    x = tl.load(ptrs, mask=mask[:, None], other=0, eviction_policy="evict_first")
    if HALF:
        signs = _signs_of_halves(x)
    else:
        bit = (1 << tl.arange(0, A_BYTE))[None, :]
        signs = tl.sum(tl.where(x <= 0, 0, bit), 1)
    tl.store(coded_ptr + start + rows, signs.to(tl.uint8), mask=mask)


def sign_bits_encode(raw: Tensor, coded: Tensor) -> None:
    """The sign bits of a map raw [rows, ..., C] as uint8 [rows, ..., C / 8]; both contiguous."""
    if raw.numel() == 0:
        return
    half, num_bytes = raw.element_size() == 2, coded.numel()
    _encode_kernel[(triton.cdiv(num_bytes, ROWS),)](
        raw.view(torch.int32) if half else raw, coded, num_bytes,
        HALF=half, ROWS=ROWS, num_warps=NUM_WARPS,
    )  # fmt: skip


def sign_bits_encode_reference(raw: Tensor, coded: Tensor) -> None:
    """Computes `sign_bits_encode` in torch."""
    coded.copy_(packed_signs_reference(raw))


def words_of(signs: Tensor, channels: int) -> Tensor:
    """Sign bits uint8 [..., C / 8] viewed as the words that kernels load, int32 where they fit.

    They may be a range of wider ones.
    """
    places = channels, *(BYTE * each for each in (signs.storage_offset(), *signs.stride()[:-1]))
    return signs.view(torch.int32) if all(each % WORD == 0 for each in places) else signs


def packed_signs_reference(maps: Tensor) -> Tensor:
    """The sign bits of maps [..., C], uint8 [..., C / 8]."""
    places = torch.arange(BYTE, device=maps.device)
    passing = (~(maps <= 0)).long().unflatten(-1, (-1, BYTE))
    return (passing << places).sum(-1).to(torch.uint8)


def passes_reference(signs: Tensor) -> Tensor:
    """Where sign bits uint8 [..., C / 8] are set, bool [..., C]."""
    places = torch.arange(BYTE, device=signs.device)
    return (signs.long()[..., None] >> places & 1).flatten(-2) != 0

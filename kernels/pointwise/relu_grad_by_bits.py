"""The gradient of ReLU by the sign bits of its output, in the place of the output itself."""

from math import gcd
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..codec.sign_bits import BYTE, WORD, passes, passes_reference
from ..language.channel_ranges import pitch_of
from ..language.elementwise import (
    BLOCK,
    LOAD_NBYTES,
    NUM_WARPS,
    RANGE_CHANNELS,
    are_whole,
    block_channels,
    block_ptrs,
)
from ..language.rounding import stored, stored_reference

WORD_NBYTES: Final = WORD // BYTE
ROW: Final = 64  # values that a program takes as one row of contiguous maps, at most


@triton.jit(do_not_specialize=["pixels", "lanes", "word_pitch", "dy_lanes", "dx_lanes"])
def _relu_grad_by_bits_kernel(
    words_ptr, dy_ptr, dx_ptr, pixels, lanes, word_pitch, dy_lanes, dx_lanes,
    PRECISION: tl.constexpr, LANE: tl.constexpr, BLOCK_PIXELS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    c, mask = block_channels(pixels, lanes, LANE, BLOCK_PIXELS, BLOCK_C)
    BITS: tl.constexpr = words_ptr.dtype.element_ty.primitive_bitwidth
    WORDS: tl.constexpr = BLOCK_C // BITS
    start = tl.program_id(0).to(tl.int64) * BLOCK_PIXELS
    rows = tl.arange(0, BLOCK_PIXELS)[:, None]
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)[None, :]
    exist = (rows < pixels - start) & (word < lanes * LANE // BITS)
    signs_ptrs = words_ptr + start * word_pitch + (rows * word_pitch + word)
    signs = tl.load(signs_ptrs, mask=exist, other=0)
    dy = tl.load(block_ptrs(dy_ptr, c, dy_lanes, LANE, BLOCK_PIXELS), mask=mask, other=0.0)
    dx = stored(tl.where(passes(signs), dy, 0.0), dy.dtype, PRECISION)
    tl.store(block_ptrs(dx_ptr, c, dx_lanes, LANE, BLOCK_PIXELS), dx, mask=mask)


def relu_grad_by_bits(signs: Tensor, dy: Tensor, dx: Tensor, *, precision: str = "ieee") -> None:
    """dx = dy where the sign bit of the output of `relu` is set, else 0. dx may be dy.

    `signs` are uint8 [..., C / 8], dy and dx [..., C]. All are channel ranges, or contiguous of any
    shapes.
    """
    if dy.numel() == 0:
        return
    channels = BYTE * signs.shape[-1]
    row = gcd(channels, ROW) if are_whole(signs, dy, dx) else channels
    words, maps = _words(signs, row), [_rows(each, row) for each in (dy, dx)]
    pitches = [pitch_of(each) for each in maps]
    starts = (each.storage_offset() for each in maps)
    lane = gcd(LOAD_NBYTES // dy.element_size(), row, *pitches, *starts)
    block_c = min(triton.next_power_of_2(row), RANGE_CHANNELS)
    block_pixels = BLOCK // block_c
    pixels = len(words)
    grid = (triton.cdiv(pixels, block_pixels), triton.cdiv(row, block_c))
    _relu_grad_by_bits_kernel[grid](
        words, *maps, pixels, row // lane, pitch_of(words), *(pitch // lane for pitch in pitches),
        PRECISION=precision, LANE=lane, BLOCK_PIXELS=block_pixels, BLOCK_C=block_c,
        num_warps=NUM_WARPS,
    )  # fmt: skip


def _rows(maps: Tensor, width: int) -> Tensor:
    """Contiguous maps as rows of `width` values, or the pixels of a channel range."""
    return maps.view(-1, width) if maps.is_contiguous() else maps.flatten(0, -2)


def _words(signs: Tensor, row: int) -> Tensor:
    """The sign bits of rows of values, int32 where whole words hold those of a row."""
    rows = _rows(signs, row // BYTE)
    fits = gcd(row // BYTE, pitch_of(rows), rows.storage_offset()) % WORD_NBYTES == 0
    return rows.view(torch.int32) if fits else rows


def relu_grad_by_bits_reference(
    signs: Tensor, dy: Tensor, dx: Tensor, *, precision: str = "ieee"
) -> None:
    """Computes `relu_grad_by_bits` in torch."""
    masked = torch.where(passes_reference(signs).view(dy.shape), dy, 0.0)
    dx.copy_(stored_reference(masked, dx.dtype, precision))

"""Copies and zeroing of channel ranges of contiguous maps [..., C].

Values are moved bit for bit, in the widest words that divide addresses, pitches and ranges.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

NUM_WARPS: Final = 8
TILE_NBYTES: Final = 16384  # bytes of a program's tile
TILE_WORDS: Final = 128  # words of a pixel in a tile, at most
WORDS: Final = {8: torch.int64, 4: torch.int32, 2: torch.int16}  # types of words by bytes


@triton.jit
def _tile(pixels, words, BLOCK_PIXELS: tl.constexpr, BLOCK_WORDS: tl.constexpr):
    """First pixel (int64) of a program's tile, its pixels [P, 1], words [1, W] and mask [P, W]."""
    start = tl.program_id(0).to(tl.int64) * BLOCK_PIXELS
    offs_p = tl.arange(0, BLOCK_PIXELS)[:, None]
    offs_w = tl.program_id(1) * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)[None, :]
    return start, offs_p, offs_w, (offs_p < pixels - start) & (offs_w < words)


@triton.jit(do_not_specialize=["pixels"])
def _copy_kernel(
    src_ptr, dst_ptr, pixels, words, src_pitch, dst_pitch,
    BLOCK_PIXELS: tl.constexpr, BLOCK_WORDS: tl.constexpr,
):  # fmt: skip
    start, offs_p, offs_w, mask = _tile(pixels, words, BLOCK_PIXELS, BLOCK_WORDS)
    src_ptr += start * src_pitch
    dst_ptr += start * dst_pitch
    values = tl.load(src_ptr + offs_p * src_pitch + offs_w, mask=mask, other=0)
    tl.store(dst_ptr + offs_p * dst_pitch + offs_w, values, mask=mask)


@triton.jit(do_not_specialize=["pixels"])
def _zero_kernel(
    dst_ptr, pixels, words, dst_pitch, BLOCK_PIXELS: tl.constexpr, BLOCK_WORDS: tl.constexpr
):  # fmt: skip
    start, offs_p, offs_w, mask = _tile(pixels, words, BLOCK_PIXELS, BLOCK_WORDS)
    dst_ptr += start * dst_pitch
    tl.store(dst_ptr + offs_p * dst_pitch + offs_w, 0, mask=mask)


def copy_channels(src: Tensor, dst: Tensor) -> None:
    """Copy map src [..., C] to dst of the same shape and dtype. Either may be a channel range."""
    source, target = _in_words(src, dst)
    _launch(_copy_kernel, source, target)


def zero_channels(dst: Tensor) -> None:
    """Set map dst [..., C], which may be a channel range, to zero."""
    _launch(_zero_kernel, *_in_words(dst))


def _in_words(*maps: Tensor) -> tuple[Tensor, ...]:
    """The maps as matrices [pixels, words] of the widest integers that divide all offsets."""
    rows = [each.flatten(0, -2) for each in maps]
    itemsize = maps[0].element_size()
    lengths = [n for each in rows for n in (each.storage_offset(), each.stride(0), each.shape[1])]
    nbytes = next(size for size in WORDS if all(n * itemsize % size == 0 for n in lengths))
    return tuple(each.view(WORDS[nbytes]) for each in rows)


def _launch(kernel: triton.JITFunction, *rows: Tensor) -> None:
    pixels, words = rows[0].shape
    if rows[0].numel() == 0:
        return
    block_words = min(triton.next_power_of_2(words), TILE_WORDS)
    block_pixels = TILE_NBYTES // (block_words * rows[0].element_size())
    grid = (triton.cdiv(pixels, block_pixels), triton.cdiv(words, block_words))
    pitches = (each.stride(0) for each in rows)
    kernel[grid](
        *rows,
        pixels,
        words,
        *pitches,
        BLOCK_PIXELS=block_pixels,
        BLOCK_WORDS=block_words,
        num_warps=NUM_WARPS,
    )


def copy_channels_reference(src: Tensor, dst: Tensor) -> None:
    """Computes `copy_channels` in torch."""
    dst.copy_(src)


def zero_channels_reference(dst: Tensor) -> None:
    """Computes `zero_channels` in torch."""
    dst.zero_()

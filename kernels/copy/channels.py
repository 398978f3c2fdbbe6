"""Copies and zeros of channel ranges: maps [..., C] whose pixels lie at one pitch.

Such is a range of the channels of a contiguous map. Bits move as they are, in the widest words that
addresses, pitches and ranges are whole in.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

NUM_WARPS: Final = 8
TILE_NBYTES: Final = 16384
TILE_WORDS: Final = 128  # of a pixel
WORDS: Final = {8: torch.int64, 4: torch.int32, 2: torch.int16}


@triton.jit(do_not_specialize=["pixels"])
def _copy_kernel(
    src_ptr, dst_ptr, pixels, words, src_pitch, dst_pitch,
    BLOCK_PIXELS: tl.constexpr, BLOCK_WORDS: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(0).to(tl.int64) * BLOCK_PIXELS
    offs_p = tl.arange(0, BLOCK_PIXELS)[:, None]  # [BLOCK_PIXELS, 1]
    offs_w = tl.program_id(1) * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)[None, :]
    mask = (offs_p < pixels - start) & (offs_w < words)  # [BLOCK_PIXELS, BLOCK_WORDS]
    src_ptr += start * src_pitch
    dst_ptr += start * dst_pitch
    values = tl.load(src_ptr + offs_p * src_pitch + offs_w, mask=mask, other=0)
    tl.store(dst_ptr + offs_p * dst_pitch + offs_w, values, mask=mask)


@triton.jit(do_not_specialize=["pixels"])
def _zero_kernel(
    dst_ptr, pixels, words, dst_pitch, BLOCK_PIXELS: tl.constexpr, BLOCK_WORDS: tl.constexpr
):  # fmt: skip
    start = tl.program_id(0).to(tl.int64) * BLOCK_PIXELS
    offs_p = tl.arange(0, BLOCK_PIXELS)[:, None]  # [BLOCK_PIXELS, 1]
    offs_w = tl.program_id(1) * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)[None, :]
    mask = (offs_p < pixels - start) & (offs_w < words)  # [BLOCK_PIXELS, BLOCK_WORDS]
    dst_ptr += start * dst_pitch
    tl.store(dst_ptr + offs_p * dst_pitch + offs_w, 0, mask=mask)


def copy_channels(src: Tensor, dst: Tensor) -> None:
    """dst = src, bit for bit; of one shape and dtype, each at a pitch of its own."""
    source, target = _in_words(src, dst)
    _launch(_copy_kernel, source, target)


def zero_channels(dst: Tensor) -> None:
    """dst = 0."""
    _launch(_zero_kernel, *_in_words(dst))


def _in_words(*maps: Tensor) -> tuple[Tensor, ...]:
    """The maps as matrices [pixels, words] of the widest integers that they are whole in."""
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
    """What `copy_channels` computes."""
    dst.copy_(src)


def zero_channels_reference(dst: Tensor) -> None:
    """What `zero_channels` computes."""
    dst.zero_()

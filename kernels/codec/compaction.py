"""Compaction: the values of a section whose bits are not all zero, packed one behind the other.

Tiles (pairs.py) append to what is packed in any order, by an atomic cursor, and a table says where
each of their blocks begins. The first values, up to a capacity, lie in the head of a code. The tail
takes the others.

Values are packed in shared memory first, and leave it as whole words of adjacent threads. In the
interpreter they are stored at their places.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language import device
from ..language.shared_memory import get, put, put_halves, put_words, room
from .pairs import BLOCK, BLOCKS, LANES, TILE, num_tiles, settings_of

# Words that leave shared memory at once. 64 MiB of bfloat16 take 45.6 us, and by 256 words 46.3
# (H100, 2026-11-26).
STEP: Final = tl.constexpr(512)
ALIGNED_NBYTES: Final = 16  # packed values begin at a multiple


@triton.jit
def store_packed(head_ptr, tail_ptr, places, values, mask, capacity, end, numel) -> None:
    """Store values at places up to `end`: in the head up to its capacity, the others in the tail.

    No place is beyond the section's number of values, even where a cursor was not cleared.
    """
    if end <= capacity:
        tl.store(head_ptr + places, values, mask=mask)
    else:
        tl.store(head_ptr + places, values, mask=mask & (places < capacity))
        spilled = (places >= capacity) & (places < numel)
        tl.store(tail_ptr + (places - capacity), values, mask=mask & spilled)


@triton.jit
def store_pairs(
    head_ptr, tail_ptr, places, low, high, has_low, has_high, capacity, end, numel
) -> None:
    """Store the values of pairs (pairs.py) whose flags are set, from the places of the pairs on."""
    first, second = low.to(head_ptr.dtype.element_ty), high.to(head_ptr.dtype.element_ty)
    store_packed(head_ptr, tail_ptr, places, first, has_low != 0, capacity, end, numel)
    places += (has_low != 0).to(tl.int32)
    store_packed(head_ptr, tail_ptr, places, second, has_high != 0, capacity, end, numel)


@triton.jit
def put_pairs(at, low, high, has_low, has_high, SIZE: tl.constexpr) -> None:
    """Put the values of SIZE bytes of pairs (pairs.py) whose flags are set into shared memory."""
    if SIZE == 2:
        put_halves(at, low, has_low, has_high)
    else:
        put_words(at, low, high, has_low, has_high)


@triton.jit
def load_packed(head_ptr, tail_ptr, places, mask, capacity, end, numel) -> tl.tensor:
    """The values at places up to `end`, where `store_packed` left them; 0 outside `mask`.

    No place is outside the section's number of values, even where the head is no code: a step that
    is run for its kernels alone decodes any bytes.
    """
    mask &= (places >= 0) & (places < numel)
    if end <= capacity:
        values = tl.load(head_ptr + places, mask=mask, other=0)
    else:
        values = tl.load(head_ptr + places, mask=mask & (places < capacity), other=0)
        spilled = mask & (places >= capacity)
        values |= tl.load(tail_ptr + (places - capacity), mask=spilled, other=0)
    return values


@triton.jit
def copy_out(
    base, shift, head_ptr, tail_ptr, first, total, capacity, numel, SIZE: tl.constexpr
) -> None:
    """Store `total` values of SIZE bytes at the places from `first` on.

    They lie in shared memory, at address `base` behind `shift` values. The address and the place of
    a value are the same modulo 4 bytes. Words that other tiles share are stored value by value.
    """
    A_WORD: tl.constexpr = 4 // SIZE
    if first + total <= capacity:
        words_ptr = (head_ptr + (first - shift)).to(tl.pointer_type(tl.int32))
        begin, end = tl.cdiv(shift, A_WORD), (shift + total) // A_WORD
        for start in range(0, end, STEP):
            offs = start + tl.arange(0, STEP)
            inside = (offs >= begin) & (offs < end)
            tl.store(words_ptr + offs, get(base + 4 * offs, inside.to(tl.int32), 4), mask=inside)
        if A_WORD > 1:
            ends = tl.arange(0, 2 * A_WORD)
            is_first = ends < A_WORD
            offs = tl.where(is_first, ends, end * A_WORD + ends - A_WORD)
            mask = (offs >= shift) & (offs < shift + total) & ((shift > 0) | (ends >= A_WORD))
            values = get(base + offs * SIZE, mask.to(tl.int32), SIZE)
            ptrs = head_ptr + (first - shift) + offs
            tl.store(ptrs, values.to(head_ptr.dtype.element_ty), mask=mask)
    else:
        for start in range(0, total, STEP):
            offs = start + tl.arange(0, STEP)
            values = get(base + (shift + offs) * SIZE, (offs < total).to(tl.int32), SIZE)
            values = values.to(head_ptr.dtype.element_ty)
            places = first + offs
            store_packed(
                head_ptr, tail_ptr, places, values, offs < total, capacity, first + total, numel
            )


@triton.jit
def copy_in(
    base, head_ptr, tail_ptr, first, total, capacity, numel, SIZE: tl.constexpr
) -> tl.tensor:
    """The opposite of `copy_out`, for values of 2 or 4 bytes. Returns how far behind `base`."""
    A_WORD: tl.constexpr = 4 // SIZE
    shift = 0
    if (first >= 0) & (first + total <= tl.minimum(capacity, numel)):
        shift = first & (A_WORD - 1)
        words_ptr = (head_ptr + (first - shift)).to(tl.pointer_type(tl.int32))
        end = (shift + total) // A_WORD
        for start in range(0, end, STEP):
            offs = start + tl.arange(0, STEP)
            words = tl.load(words_ptr + offs, mask=offs < end, other=0)
            put(base + 4 * offs, words, (offs < end).to(tl.int32), 4)
        if end * A_WORD < shift + total:
            last = tl.load(head_ptr + (first + total - 1)).to(tl.int32)
            lane = tl.arange(0, LANES)
            put(base + end * 4 + 0 * lane, last + 0 * lane, (lane == 0).to(tl.int32), SIZE)
    else:
        for start in range(0, total, STEP):
            offs = start + tl.arange(0, STEP)
            mask, places = offs < total, first + offs
            values = load_packed(head_ptr, tail_ptr, places, mask, capacity, first + total, numel)
            put(base + SIZE * offs, values.to(tl.int32), mask.to(tl.int32), SIZE)
    return shift


def packing_settings(raw: Tensor) -> dict[str, int | bool]:
    """Constants of a launch: those of its loads, and whether values pass through shared memory."""
    return {**settings_of(raw), "STAGED": not device.interpreted(), "num_warps": 4}


def room_of(name: str, itemsize: int) -> str:
    """Shared memory for the values of a tile, from any place in a word on."""
    return room(name, TILE.value * itemsize + 16)


def in_blocks(bits: Tensor) -> Tensor:
    """A copy of values [numel] as blocks [blocks, BLOCK] of whole tiles, with zeros at the end."""
    blocks = bits.new_zeros(num_tiles(bits.numel()) * TILE.value)
    blocks[: bits.numel()] = bits
    return blocks.view(-1, BLOCK.value)


def appended(present: Tensor, count: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Starts [blocks] and places [blocks, BLOCK], where tiles append to `count` in this order.

    `present` says which values there are, bool [blocks, BLOCK] in the order of packing.
    """
    sizes = present.sum(1).view(-1, BLOCKS.value)
    tiles = sizes.sum(1)
    starts = torch.empty_like(tiles)
    starts[order] = tiles[order].cumsum(0) - tiles[order] + count
    count += sizes.sum()
    blocks = (starts[:, None] + sizes.cumsum(1) - sizes).flatten()
    return blocks, blocks[:, None] + present.cumsum(1) - 1


def scatter_packed(
    values: Tensor, present: Tensor, places: Tensor, head: Tensor, tail: Tensor
) -> None:
    """Put the values that are present at their places in the head and the tail."""
    for packed, first in ((head, 0), (tail, head.numel())):
        own = present & (places >= first) & (places < first + packed.numel())
        where = (places[own] - first).to(packed.device)  # the tail may lie on the host
        packed[where] = values[own].to(packed)


def gather_packed(present: Tensor, places: Tensor, head: Tensor, tail: Tensor) -> Tensor:
    """The values that are present, from their places in the head and the tail; 0 elsewhere."""
    packed = torch.cat((head, tail.to(head.device)))
    values = packed.new_zeros(present.shape)
    values[present] = packed[places[present]]
    return values

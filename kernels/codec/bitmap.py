"""Bitmap codes: a bit for each value whose bits are not all zero, and these values, packed.

-0.0 and NaN are values. Decoding gives the same bits back, wherever each block's values lie.

A code has a head and a tail, both bytes. The head holds a word of bits for each lane of a block
(pairs.py), the place of each block's first value, and up to its capacity of packed values.
"""

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.cost import Cost, costing, moved
from ..language.shared_memory import address, get_halves, get_words
from .compaction import (
    ALIGNED_NBYTES,
    appended,
    copy_in,
    copy_out,
    gather_packed,
    in_blocks,
    load_packed,
    packing_settings,
    put_pairs,
    room_of,
    scatter_packed,
    store_pairs,
)
from .pairs import (
    BLOCK,
    BLOCKS,
    LANES,
    PAIRS,
    THREADS,
    TILE,
    bits_of,
    blocks_exist,
    flags_of,
    halves_of_pairs,
    in_order,
    load_pairs,
    num_blocks,
    num_tiles,
    out_of_order,
    ranks_of,
    raw_of,
    store_raw,
    total_of,
    words_of_pairs,
)

BLOCK_NBYTES: Final = (LANES.value + 1) * 4  # bits of a block, and its place


@triton.jit(do_not_specialize=["numel", "capacity"])
def _encode_kernel(
    raw_ptr, words_ptr, starts_ptr, values_ptr, tail_ptr, count_ptr, numel, capacity,
    V: tl.constexpr, WHOLE: tl.constexpr, STAGED: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0).to(tl.int64)
    low, high, bits = load_pairs(raw_ptr, tile, numel, V, WHOLE)
    threads, blocks = tl.arange(0, THREADS), tl.arange(0, BLOCKS)
    exist = tile * TILE + threads // LANES * BLOCK < numel
    ptrs = words_ptr + tile * THREADS + threads
    tl.store(ptrs, bits.to(tl.int32, bitcast=True), mask=exist)
    ranks, sizes, begins = ranks_of(bits)
    total = total_of(sizes)
    first = tl.atomic_add(count_ptr, total, sem="relaxed")
    tl.store(starts_ptr + tile * BLOCKS + blocks, first + begins, mask=blocks_exist(tile, numel))
    has_low, has_high = flags_of(bits), flags_of(bits >> 16)
    if STAGED:
        SIZE: tl.constexpr = 16 // V
        base, shift = address(ROOM), first & (4 // SIZE - 1)
        put_pairs(base + (shift + ranks) * SIZE, low, high, has_low, has_high, SIZE)
        tl.debug_barrier()
        copy_out(base, shift, values_ptr, tail_ptr, first, total, capacity, numel, SIZE)
    else:
        end, places = first + total, first + ranks
        store_pairs(
            values_ptr, tail_ptr, places, low, high, has_low, has_high, capacity, end, numel
        )


@triton.jit(do_not_specialize=["numel", "capacity"])
def _decode_kernel(
    words_ptr, starts_ptr, values_ptr, tail_ptr, raw_ptr, numel, capacity,
    V: tl.constexpr, WHOLE: tl.constexpr, STAGED: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0).to(tl.int64)
    threads = tl.arange(0, THREADS)
    exist = tile * TILE + threads // LANES * BLOCK < numel
    bits = tl.load(words_ptr + tile * THREADS + threads, mask=exist, other=0)
    bits = bits.to(tl.uint32, bitcast=True)
    first = tl.load(starts_ptr + tile * BLOCKS)
    ranks, sizes, _ = ranks_of(bits)
    total, has_low, has_high = total_of(sizes), flags_of(bits), flags_of(bits >> 16)
    if STAGED:
        SIZE: tl.constexpr = 16 // V
        base = address(ROOM)
        shift = copy_in(base, values_ptr, tail_ptr, first, total, capacity, numel, SIZE)
        tl.debug_barrier()
        at = base + (shift + ranks) * SIZE
        if V == 8:
            words = halves_of_pairs(get_halves(at, has_low, has_high))
        else:
            low, high = get_words(at, has_low, has_high)
            words = words_of_pairs(low, high)
    else:
        end, places = first + total, first + ranks
        low = load_packed(values_ptr, tail_ptr, places, has_low != 0, capacity, end, numel)
        places += (has_low != 0).to(tl.int32)
        high = load_packed(values_ptr, tail_ptr, places, has_high != 0, capacity, end, numel)
        if V == 8:
            pairs = low.to(tl.uint16, bitcast=True).to(tl.int32) | (high.to(tl.int32) << 16)
            words = halves_of_pairs(pairs)
        else:
            words = words_of_pairs(low, high)
    store_raw(raw_ptr, words, tile, numel, V, WHOLE)


class BitmapParts(NamedTuple):
    """A bitmap code's tensors: views of its head and tail."""

    words: Tensor  # int32 [blocks * LANES], a bit for each value
    starts: Tensor  # int32 [blocks], the place of each block's first value
    values: Tensor  # integers [capacity], packed
    tail: Tensor  # integers, packed values beyond the capacity


def bitmap_nbytes(numel: int, itemsize: int, capacity: int) -> int:
    """Bytes of the head of a section's code that holds up to `capacity` values."""
    nbytes = num_blocks(numel) * BLOCK_NBYTES
    return -(-nbytes // ALIGNED_NBYTES) * ALIGNED_NBYTES + capacity * itemsize


def _parts(head: Tensor, tail: Tensor, raw: Tensor) -> BitmapParts:
    blocks, itemsize = num_blocks(raw.numel()), raw.element_size()
    integer = bits_of(raw).dtype
    packed = head[bitmap_nbytes(raw.numel(), itemsize, 0) :].view(integer)
    spilled = tail.view(integer)
    assert packed.numel() + spilled.numel() >= raw.numel(), (head.shape, tail.shape, raw.shape)
    words, starts = head[: blocks * BLOCK_NBYTES].view(torch.int32).split(
        [blocks * LANES.value, blocks]
    )  # fmt: skip
    return BitmapParts(words, starts, packed, spilled)


def _cost(raw: Tensor, head: Tensor) -> Cost:
    """Both are read or written once. The tail is touched by what the head has no room for."""
    return Cost(0.0, moved(raw, head))


@costing(lambda raw, head, tail, count: _cost(raw, head))
def bitmap_encode(raw: Tensor, head: Tensor, tail: Tensor, count: Tensor) -> None:
    """Encode a contiguous section. `count`, int32 [1] and 0 before, becomes its number of values.

    Head and tail are bytes, at multiples of 16. The head's length gives its capacity
    (`bitmap_nbytes`), and the tail holds all values beyond it. It may lie in pinned host memory.
    """
    if raw.numel() == 0:
        return
    parts = _parts(head, tail, raw)
    _encode_kernel[(num_tiles(raw.numel()),)](
        raw_of(raw), *parts, count, raw.numel(), parts.values.numel(),
        **packing_settings(raw), ROOM=room_of("values", raw.element_size()),
    )  # fmt: skip


@costing(lambda head, tail, raw: _cost(raw, head))
def bitmap_decode(head: Tensor, tail: Tensor, raw: Tensor) -> None:
    """Decode what `bitmap_encode` made of a section of the same size."""
    if raw.numel() == 0:
        return
    parts = _parts(head, tail, raw)
    _decode_kernel[(num_tiles(raw.numel()),)](
        *parts, raw_of(raw), raw.numel(), parts.values.numel(),
        **packing_settings(raw), ROOM=room_of("values", raw.element_size()),
    )  # fmt: skip


def _bit_of_pairs(like: Tensor) -> Tensor:
    """The bit of a word that is that of each value of a pair: int64 [PAIRS, 1, 2]."""
    pairs = torch.arange(PAIRS.value, device=like.device)
    return torch.stack((pairs, pairs + PAIRS.value), 1)[:, None]


def encode_in_order(raw: Tensor, head: Tensor, tail: Tensor, count: Tensor, order: Tensor) -> None:
    """`bitmap_encode` in torch, whose tiles append in this order."""
    parts, values = _parts(head, tail, raw), in_order(in_blocks(bits_of(raw)))
    present, blocks = values != 0, num_blocks(raw.numel())
    bits = present[:blocks].view(-1, PAIRS.value, LANES.value, 2).long() << _bit_of_pairs(raw)
    parts.words.copy_(bits.sum((1, 3)).flatten().to(torch.int32))
    starts, places = appended(present, count, order)
    parts.starts.copy_(starts[:blocks])
    scatter_packed(values, present, places, parts.values, parts.tail)


def bitmap_encode_reference(raw: Tensor, head: Tensor, tail: Tensor, count: Tensor) -> None:
    order = torch.arange(num_tiles(raw.numel()), device=raw.device)
    encode_in_order(raw, head, tail, count, order)


def bitmap_decode_reference(head: Tensor, tail: Tensor, raw: Tensor) -> None:
    parts, bits = _parts(head, tail, raw), bits_of(raw)
    words = parts.words.long().view(-1, 1, LANES.value, 1)
    present = (words >> _bit_of_pairs(raw) & 1).view(-1, BLOCK.value) != 0
    places = parts.starts.long()[:, None] + present.cumsum(1) - 1
    values = gather_packed(present, places, parts.values, parts.tail)
    bits.copy_(out_of_order(values).flatten()[: bits.numel()])

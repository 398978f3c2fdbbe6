"""Bitmap codes: a bit for each value whose bits are not all zero, and these values, packed.

-0.0 and NaN are values. Decoding gives the same bits back, wherever each block's values lie.

A code has a head and a tail, both bytes. The head holds 32 words of bits for each block, the place
of each block's first value, and up to its capacity of packed values. A lane loads 16 bytes of
values at once: a block is [loads, LANES, values of a load]. Columns are the values of a load, one
load after the other. Values of two bytes come in the order 0, 2, 1, 3 of each four, in which one
word counts them with few operations. Bit i of word j of a block is that of lane j in column i.
"""

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.cost import Cost, costing, moved
from .compaction import (
    ALIGNED_NBYTES,
    BLOCK,
    GROUPS,
    LANES,
    LOW,
    appended,
    bits_of,
    counts_of,
    gather_packed,
    in_blocks,
    is_counted,
    load_packed,
    num_blocks,
    places_of,
    raw_mask,
    raw_offsets,
    scatter_packed,
    sizes_of,
    store_packed,
)

LOAD_NBYTES: Final = 16  # of a lane
APPENDED: Final = 2  # blocks that a program appends at once; 1 where values are loaded singly
# Registers of a thread. 64 MiB of bfloat16 take 47.7 us, with 166 of them 52.1 (H100, 2026-11-25).
ENCODE_REGISTERS: Final = 128
BLOCK_NBYTES: Final = (LANES.value + 1) * 4  # bits of a block, and its place
SPREAD: Final = tl.constexpr(0x00204081)  # a product with it has 4 bits at the low bits of 4 bytes
GATHERED: Final = tl.constexpr(0x10204080)  # a product has the low bits of 4 bytes in its highest 4


@triton.jit
def _in_columns(x) -> tl.tensor:
    """Values [BLOCK / V, V] as [GROUPS, 4, LANES]."""
    V: tl.constexpr = x.shape[1]
    if V == 8:
        columns = x.reshape(BLOCK // V // LANES, LANES, 2, 2, 2).permute(0, 2, 4, 3, 1)
    else:
        columns = x.reshape(BLOCK // V // LANES, LANES, V).permute(0, 2, 1)
    return columns.reshape(GROUPS, 4, LANES)


@triton.jit
def _out_of_columns(values, V: tl.constexpr) -> tl.tensor:
    """Values [BLOCK] in the order of columns as [BLOCK / V, V]."""
    if V == 8:
        x = values.reshape(BLOCK // V // LANES, 2, 2, 2, LANES).permute(0, 4, 1, 3, 2)
    else:
        x = values.reshape(BLOCK // V // LANES, V, LANES).permute(0, 2, 1)
    return x.reshape(BLOCK // V, V)


@triton.jit
def _counts_of_pairs(values) -> tl.tensor:
    """`counts_of` for int16 values, two at a time, in two thirds of the operations.

    A sum carries into the highest bit of each half of a word where another bit is set.
    """
    halves = values.to(tl.uint16, bitcast=True).to(tl.uint32).reshape(GROUPS, 2, 2, LANES)
    shifts = tl.arange(0, 2).to(tl.uint32)
    pairs = tl.sum(halves << (16 * shifts)[None, :, None, None], 1)
    marked = (((pairs & 0x7FFF7FFF) + 0x7FFF7FFF) | pairs) >> 15
    return tl.sum((marked & 0x00010001) << (8 * shifts)[None, :, None], 1)


@triton.jit
def _nibble_shifts() -> tl.tensor:
    """Shifts to each group's four bits in a word of a block: uint32 [GROUPS, 1]."""
    return (4 * tl.arange(0, GROUPS)).to(tl.uint32)[:, None]


@triton.jit(do_not_specialize=["numel", "capacity"])
def _encode_kernel(
    raw_ptr, words_ptr, starts_ptr, values_ptr, tail_ptr, count_ptr, numel, capacity,
    V: tl.constexpr, WHOLE: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """A program appends BLOCKS blocks at once, as atomics are slow.

    For 64 MiB of bfloat16, 32,768 of them add 14 us to 43 (H100, 2026-11-25).
    """
    start = tl.program_id(0).to(tl.int64) * BLOCKS
    held, size = (), 0
    for k in tl.static_range(BLOCKS):
        block = start + k
        mask = raw_mask(block, numel, V, WHOLE)
        values = _in_columns(tl.load(raw_ptr + raw_offsets(block, V), mask=mask, other=0))
        counts = _counts_of_pairs(values) if V == 8 else counts_of(values)
        words = tl.sum(((counts * GATHERED) >> 28) << _nibble_shifts(), 0)
        words_ptrs = words_ptr + block * LANES + tl.arange(0, LANES)
        tl.store(words_ptrs, words.to(tl.int32, bitcast=True), mask=block * BLOCK < numel)
        sizes = sizes_of(counts)
        held = held + ((values, counts, sizes, size),)  # noqa: RUF005 (no stars in Triton)
        size += tl.sum(sizes, 0)
    first = tl.atomic_add(count_ptr, size, sem="relaxed")
    end = first + size
    for k in tl.static_range(BLOCKS):
        values, counts, sizes, before = held[k]
        tl.store(starts_ptr + start + k, first + before, mask=(start + k) * BLOCK < numel)
        places, present = places_of(counts, sizes, first + before), is_counted(counts)
        values = values.reshape(BLOCK)
        store_packed(values_ptr, tail_ptr, places, values, present, capacity, end, numel)


@triton.jit(do_not_specialize=["numel", "capacity"])
def _decode_kernel(
    words_ptr, starts_ptr, values_ptr, tail_ptr, raw_ptr, numel, capacity,
    V: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64)
    words = tl.load(words_ptr + block * LANES + tl.arange(0, LANES)).to(tl.uint32, bitcast=True)
    first = tl.load(starts_ptr + block)
    counts = (((words[None, :] >> _nibble_shifts()) & 0xF) * SPREAD) & LOW
    sizes = sizes_of(counts)
    places = places_of(counts, sizes, first)
    present, end = is_counted(counts), first + tl.sum(sizes, 0)
    values = load_packed(values_ptr, tail_ptr, places, present, capacity, end, numel)
    mask = raw_mask(block, numel, V, WHOLE)
    tl.store(raw_ptr + raw_offsets(block, V), _out_of_columns(values, V), mask=mask)


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


def _settings(raw: Tensor) -> dict[str, int | bool]:
    lane = LOAD_NBYTES // raw.element_size()
    return {"V": lane, "WHOLE": raw.numel() % lane == 0, "num_warps": 1}


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
    parts, settings = _parts(head, tail, raw), _settings(raw)
    whole = settings["WHOLE"]
    appended_at_once, registers = (APPENDED, ENCODE_REGISTERS) if whole else (1, None)
    _encode_kernel[(triton.cdiv(parts.starts.numel(), appended_at_once),)](
        bits_of(raw), *parts, count, raw.numel(), parts.values.numel(),
        **settings, BLOCKS=appended_at_once, maxnreg=registers,
    )  # fmt: skip


@costing(lambda head, tail, raw: _cost(raw, head))
def bitmap_decode(head: Tensor, tail: Tensor, raw: Tensor) -> None:
    """Decode what `bitmap_encode` made of a section of the same size."""
    if raw.numel() == 0:
        return
    parts = _parts(head, tail, raw)
    _decode_kernel[(parts.starts.numel(),)](
        *parts, bits_of(raw), raw.numel(), parts.values.numel(), **_settings(raw)
    )


def _columns(blocks: Tensor) -> Tensor:
    """Places within a block, int64 [BLOCK], of the values in the order of columns."""
    lane = LOAD_NBYTES // blocks.element_size()
    places = torch.arange(BLOCK.value, device=blocks.device).view(-1, LANES.value, lane // 4, 4)
    if lane == 8:
        places = places[..., [0, 2, 1, 3]]
    return places.permute(0, 2, 3, 1).flatten()


def encode_in_order(raw: Tensor, head: Tensor, tail: Tensor, count: Tensor, order: Tensor) -> None:
    """`bitmap_encode` in torch, whose blocks append in this order."""
    parts, blocks = _parts(head, tail, raw), in_blocks(bits_of(raw))
    values = blocks[:, _columns(blocks)]
    present = values != 0
    columns = torch.arange(BLOCK.value // LANES.value, device=raw.device)[:, None]
    words = (present.view(-1, len(columns), LANES.value).long() << columns).sum(1)
    parts.words.copy_(words.flatten().to(torch.int32))
    starts, places = appended(present, count, order)
    parts.starts.copy_(starts)
    scatter_packed(values, present, places, parts.values, parts.tail)


def bitmap_encode_reference(raw: Tensor, head: Tensor, tail: Tensor, count: Tensor) -> None:
    encode_in_order(
        raw, head, tail, count, torch.arange(num_blocks(raw.numel()), device=raw.device)
    )


def bitmap_decode_reference(head: Tensor, tail: Tensor, raw: Tensor) -> None:
    parts, bits = _parts(head, tail, raw), bits_of(raw)
    columns = torch.arange(BLOCK.value // LANES.value, device=raw.device)[:, None]
    present = (parts.words.long().view(-1, 1, LANES.value) >> columns & 1).flatten(1) != 0
    places = parts.starts.long()[:, None] + present.cumsum(1) - 1
    values = gather_packed(present, places, parts.values, parts.tail)
    blocks = torch.empty_like(values)
    blocks[:, _columns(blocks)] = values
    bits.copy_(blocks.flatten()[: bits.numel()])

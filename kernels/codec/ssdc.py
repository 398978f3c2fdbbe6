"""Sparse storage, dense compute (Gist): compressed rows of 256 values, with a byte for each column.

The values whose bits are not all zero are packed row by row, each with its column in its row. -0.0
and NaN are values. Decoding gives the same bits back, wherever each block's values lie.

A code has a head and a tail, both bytes. The head holds the place of each block's first value,
where each row ends within its block, and up to its capacity of packed values and columns. A row is
a group of a block (pairs.py). The tail holds its values, then their columns.
"""

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.cost import Cost, costing, moved
from ..language.shared_memory import (
    address,
    get_fours,
    put,
    put_bytes,
    put_zeros,
    room,
)
from .compaction import (
    ALIGNED_NBYTES,
    appended,
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
    GROUPS,
    LANES,
    PAIRS,
    THREADS,
    bits_of,
    blocks_exist,
    flags_of,
    in_order,
    load_pairs,
    num_blocks,
    num_tiles,
    ranks_of,
    raw_of,
    total_of,
)

ROW: Final = tl.constexpr(256)  # values
ROWS: Final = tl.constexpr(4)  # of a block, its groups
STEP: Final = tl.constexpr(256)  # packed values that a program decodes at once
DECODING_WARPS: Final = 2  # of a program, which decodes a block
# Registers of a thread, by bytes of a value. 64 MiB of float32 take 47.6 us, by 64 of them, which
# spill, 57.6; of bfloat16 57.1 us, and 58.0 without a limit (H100, 2026-11-26).
ENCODE_REGISTERS: Final = {2: 64, 4: None}
BLOCK_NBYTES: Final = 4 + 2 * ROWS.value  # place of a block, and ends of its rows


@triton.jit
def _columns(V: tl.constexpr) -> tl.tensor:
    """Columns in their rows of the low values of pairs: int32 [PAIRS * THREADS]."""
    A_LOAD: tl.constexpr = V // 2
    place = tl.arange(0, PAIRS * THREADS)
    pair, lane = place // THREADS % GROUPS, place % LANES
    return (pair // A_LOAD * LANES + lane) * V + pair % A_LOAD * 2


@triton.jit(do_not_specialize=["numel", "capacity"])
def _encode_kernel(
    raw_ptr, starts_ptr, ends_ptr, values_ptr, indices_ptr, tail_ptr, tail_indices_ptr, count_ptr,
    numel, capacity, V: tl.constexpr, WHOLE: tl.constexpr, STAGED: tl.constexpr,
    ROOM: tl.constexpr, INDEX_ROOM: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0).to(tl.int64)
    low, high, bits = load_pairs(raw_ptr, tile, numel, V, WHOLE)
    ranks, sizes, begins = ranks_of(bits)
    blocks, exist = tile * BLOCKS + tl.arange(0, BLOCKS), blocks_exist(tile, numel)
    ptrs = ends_ptr + blocks[None, :] * ROWS + tl.arange(0, ROWS)[:, None]
    tl.store(ptrs, tl.cumsum(sizes, 0).to(tl.int16), mask=exist[None, :])
    total = total_of(sizes)
    first = tl.atomic_add(count_ptr, total, sem="relaxed")
    tl.store(starts_ptr + blocks, first + begins, mask=exist)
    has_low, has_high, columns = flags_of(bits), flags_of(bits >> 16), _columns(V)
    if STAGED:
        SIZE: tl.constexpr = 16 // V
        base, shift = address(ROOM), first & (4 // SIZE - 1)
        indices = address(INDEX_ROOM)
        # The columns begin behind the values, at any byte of a word.
        index_shift = ((indices_ptr + first).to(tl.int64) & 3).to(tl.int32)
        put_pairs(base + (shift + ranks) * SIZE, low, high, has_low, has_high, SIZE)
        put_bytes(indices + (index_shift + ranks), columns, has_low, has_high)
        tl.debug_barrier()
        copy_out(base, shift, values_ptr, tail_ptr, first, total, capacity, numel, SIZE)
        copy_out(
            indices, index_shift, indices_ptr, tail_indices_ptr, first, total, capacity, numel, 1
        )
    else:
        end, places = first + total, first + ranks
        store_pairs(
            values_ptr, tail_ptr, places, low, high, has_low, has_high, capacity, end, numel
        )
        store_pairs(
            indices_ptr, tail_indices_ptr, places, columns, columns + 1, has_low, has_high,
            capacity, end, numel,
        )  # fmt: skip


@triton.jit(do_not_specialize=["numel", "capacity"])
def _decode_kernel(
    starts_ptr, ends_ptr, values_ptr, indices_ptr, tail_ptr, tail_indices_ptr, raw_ptr,
    numel, capacity, V: tl.constexpr, WHOLE: tl.constexpr, STAGED: tl.constexpr,
    ROOM: tl.constexpr,
):  # fmt: skip
    """A program puts zeros in the place of a block, then the values among them."""
    SIZE: tl.constexpr = 16 // V
    block = tl.program_id(0).to(tl.int64)
    left = tl.minimum(numel - block * BLOCK, BLOCK).to(tl.int32)
    loads, words, values = tl.arange(0, BLOCK // V), tl.arange(0, 4), tl.arange(0, V)
    offs = loads[:, None] * V + values[None, :]
    if STAGED:
        base = address(ROOM)
        put_zeros(base + loads * 16)
    else:
        zeros = tl.zeros((BLOCK // V, V), raw_ptr.dtype.element_ty)
        tl.store(raw_ptr + block * BLOCK + offs, zeros, mask=offs < left)
    first = tl.load(starts_ptr + block)
    ends_ptr += block * ROWS
    end_0, end_1, end_2 = tl.load(ends_ptr), tl.load(ends_ptr + 1), tl.load(ends_ptr + 2)
    size = tl.load(ends_ptr + 3).to(tl.int32)
    tl.debug_barrier()  # another thread may put a value where this one put zeros
    end = first + size
    fits = (first >= 0) & (end <= tl.minimum(capacity, numel))
    for step in range(0, size, STEP):
        slots = step + tl.arange(0, STEP)
        mask, places = slots < size, first + slots
        row = (slots >= end_0).to(tl.int32) + (slots >= end_1).to(tl.int32)
        row += (slots >= end_2).to(tl.int32)
        if fits:
            packed = tl.load(values_ptr + places, mask=mask, other=0)
            columns = tl.load(indices_ptr + places, mask=mask, other=0)
        else:
            packed = load_packed(values_ptr, tail_ptr, places, mask, capacity, end, numel)
            columns = load_packed(indices_ptr, tail_indices_ptr, places, mask, capacity, end, numel)
        target = row * ROW + columns.to(tl.int32)
        if STAGED:
            put(base + target * SIZE, packed.to(tl.int32), mask.to(tl.int32), SIZE)
        else:
            tl.store(raw_ptr + block * BLOCK + target, packed, mask=mask & (target < left))
    if STAGED:
        tl.debug_barrier()
        found = get_fours(base + loads * 16)
        if WHOLE:
            ptrs = raw_ptr + block * (BLOCK // V * 4) + (loads[:, None] * 4 + words[None, :])
            tl.store(ptrs, found, mask=(loads * V < left)[:, None])
        elif V == 4:
            tl.store(raw_ptr + block * BLOCK + offs, found, mask=offs < left)
        else:
            halves = tl.join(found, found >> 16).to(tl.int16).reshape(BLOCK // V, V)
            tl.store(raw_ptr + block * BLOCK + offs, halves, mask=offs < left)


class RowParts(NamedTuple):
    """A code's tensors: views of its head and tail."""

    starts: Tensor  # int32 [blocks], the place of each block's first value
    ends: Tensor  # int16 [blocks * ROWS], the number of values up to a row's end in its block
    values: Tensor  # integers [capacity], packed
    indices: Tensor  # uint8 [capacity], the columns of values
    tail: Tensor  # integers, packed values beyond the capacity
    tail_indices: Tensor  # uint8, their columns


def ssdc_nbytes(numel: int, itemsize: int, capacity: int) -> int:
    """Bytes of the head of a section's code that holds up to `capacity` values."""
    nbytes = num_blocks(numel) * BLOCK_NBYTES
    return -(-nbytes // ALIGNED_NBYTES) * ALIGNED_NBYTES + capacity * (itemsize + 1)


def _parts(head: Tensor, tail: Tensor, raw: Tensor) -> RowParts:
    blocks, itemsize = num_blocks(raw.numel()), raw.element_size()
    starts = head[: 4 * blocks].view(torch.int32)
    ends = head[4 * blocks : blocks * BLOCK_NBYTES].view(torch.int16)
    head = head[ssdc_nbytes(raw.numel(), itemsize, 0) :]
    packed = (*_pairs(head, raw), *_pairs(tail, raw))
    assert packed[1].numel() + packed[3].numel() >= raw.numel(), (head.shape, tail.shape)
    return RowParts(starts, ends, *packed)


def _pairs(packed: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
    """The values and the columns that packed bytes hold."""
    capacity = packed.numel() // (raw.element_size() + 1)
    values, indices = packed[: capacity * (raw.element_size() + 1)].split(
        [capacity * raw.element_size(), capacity]
    )  # fmt: skip
    return values.view(bits_of(raw).dtype), indices


def _cost(raw: Tensor, head: Tensor) -> Cost:
    """Both are read or written once. The tail is touched by what the head has no room for."""
    return Cost(0.0, moved(raw, head))


@costing(lambda raw, head, tail, count: _cost(raw, head))
def ssdc_encode(raw: Tensor, head: Tensor, tail: Tensor, count: Tensor) -> None:
    """Encode a contiguous section. `count`, int32 [1] and 0 before, becomes its number of values.

    Head and tail are bytes, at multiples of 16. The head's length gives its capacity
    (`ssdc_nbytes`), and the tail holds all values beyond it. It may lie in pinned host memory.
    """
    if raw.numel() == 0:
        return
    parts, itemsize = _parts(head, tail, raw), raw.element_size()
    _encode_kernel[(num_tiles(raw.numel()),)](
        raw_of(raw), *parts, count, raw.numel(), parts.values.numel(),
        **packing_settings(raw), ROOM=room_of("values", itemsize), INDEX_ROOM=room_of("indices", 1),
        maxnreg=ENCODE_REGISTERS[itemsize],
    )  # fmt: skip


@costing(lambda head, tail, raw: _cost(raw, head))
def ssdc_decode(head: Tensor, tail: Tensor, raw: Tensor) -> None:
    """Decode what `ssdc_encode` made of a section of the same size."""
    if raw.numel() == 0:
        return
    parts = _parts(head, tail, raw)
    settings = packing_settings(raw) | {"num_warps": DECODING_WARPS}
    _decode_kernel[(parts.starts.numel(),)](
        *parts, raw_of(raw) if settings["STAGED"] else bits_of(raw),
        raw.numel(), parts.values.numel(),
        **settings, ROOM=room("block", BLOCK.value * raw.element_size()),
    )  # fmt: skip


def encode_in_order(raw: Tensor, head: Tensor, tail: Tensor, count: Tensor, order: Tensor) -> None:
    """`ssdc_encode` in torch, whose tiles append in this order."""
    parts, values = _parts(head, tail, raw), in_order(in_blocks(bits_of(raw)))
    present, blocks = values != 0, num_blocks(raw.numel())
    ends = present[:blocks].view(-1, ROWS.value, ROW.value).sum(2).cumsum(1)
    parts.ends.copy_(ends.flatten())
    starts, places = appended(present, count, order)
    parts.starts.copy_(starts[:blocks])
    scatter_packed(values, present, places, parts.values, parts.tail)
    columns = torch.arange(BLOCK.value, device=raw.device, dtype=bits_of(raw).dtype) % ROW.value
    indices = in_order(columns[None]).expand_as(values)
    scatter_packed(indices, present, places, parts.indices, parts.tail_indices)


def ssdc_encode_reference(raw: Tensor, head: Tensor, tail: Tensor, count: Tensor) -> None:
    order = torch.arange(num_tiles(raw.numel()), device=raw.device)
    encode_in_order(raw, head, tail, count, order)


def ssdc_decode_reference(head: Tensor, tail: Tensor, raw: Tensor) -> None:
    parts, bits = _parts(head, tail, raw), bits_of(raw)
    slots = torch.arange(BLOCK.value, device=raw.device)
    ends = parts.ends.view(-1, ROWS.value).long()
    present = slots < ends[:, -1:]
    places = parts.starts.long()[:, None] + slots
    values = gather_packed(present, places, parts.values, parts.tail)
    indices = gather_packed(present, places, parts.indices, parts.tail_indices)
    rows = (slots[None, :, None] >= ends[:, None, :]).sum(2)
    blocks = torch.zeros_like(values)
    block, slot = present.nonzero(as_tuple=True)
    blocks[block, (rows * ROW.value + indices)[block, slot]] = values[block, slot]
    bits.copy_(blocks.flatten()[: bits.numel()])

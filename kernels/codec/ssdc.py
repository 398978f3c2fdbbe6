"""Sparse storage, dense compute (Gist): compressed rows of 256 values, with a byte for each column.

The values whose bits are not all zero are packed row by row, each with its column in its row. -0.0
and NaN are values. Decoding gives the same bits back, wherever each block's values lie.

A code has a head and a tail, both bytes. The head holds the place of each block's first value,
where each row ends within its block, and up to its capacity of packed values and columns. A block
is four rows. A column of `compaction` is 32 adjacent values. The tail holds its values, then their
columns.
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

ROW: Final = tl.constexpr(256)  # values
ROWS: Final = tl.constexpr(4)  # of a block
STEP: Final = tl.constexpr(256)  # packed values that a program decodes at once
BLOCK_NBYTES: Final = 4 + 2 * ROWS.value  # place of a block, and ends of its rows


@triton.jit(do_not_specialize=["numel", "capacity"])
def _encode_kernel(
    raw_ptr, starts_ptr, ends_ptr, values_ptr, indices_ptr, tail_ptr, tail_indices_ptr, count_ptr,
    numel, capacity,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64)
    offs = tl.max_contiguous(tl.arange(0, BLOCK), 1)  # a lane loads one value of a column at once
    mask = offs < tl.minimum(numel - block * BLOCK, BLOCK).to(tl.int32)
    values = tl.load(raw_ptr + block * BLOCK + offs, mask=mask, other=0)
    counts = counts_of(values.reshape(GROUPS, 4, LANES))
    sizes = sizes_of(counts)
    ends = tl.cumsum(tl.sum(sizes.reshape(ROWS, GROUPS // ROWS), 1), 0)
    tl.store(ends_ptr + block * ROWS + tl.arange(0, ROWS), ends.to(tl.int16))
    size = tl.sum(sizes, 0)
    first = tl.atomic_add(count_ptr, size, sem="relaxed")
    tl.store(starts_ptr + block, first)
    places = places_of(counts, sizes, first)
    present, end = is_counted(counts), first + size
    indices = (offs % ROW).to(tl.uint8)
    store_packed(values_ptr, tail_ptr, places, values, present, capacity, end, numel)
    store_packed(indices_ptr, tail_indices_ptr, places, indices, present, capacity, end, numel)


@triton.jit(do_not_specialize=["numel", "capacity"])
def _decode_kernel(
    starts_ptr, ends_ptr, values_ptr, indices_ptr, tail_ptr, tail_indices_ptr, raw_ptr,
    numel, capacity, V: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """A program sets its block to zero and then stores its values."""
    block = tl.program_id(0).to(tl.int64)
    zeros = tl.zeros((BLOCK // V, V), raw_ptr.dtype.element_ty)
    exists = raw_mask(block, numel, V, WHOLE)
    tl.store(raw_ptr + raw_offsets(block, V), zeros, mask=exists)
    first = tl.load(starts_ptr + block)
    end_0 = tl.load(ends_ptr + block * ROWS)
    end_1 = tl.load(ends_ptr + block * ROWS + 1)
    end_2 = tl.load(ends_ptr + block * ROWS + 2)
    size = tl.load(ends_ptr + block * ROWS + 3).to(tl.int32)
    tl.debug_barrier()  # another thread may store the value where this one stored zero
    for step in range(0, size, STEP):
        offs = step + tl.arange(0, STEP)
        mask, places, end = offs < size, first + offs, first + size
        row = (offs >= end_0).to(tl.int32) + (offs >= end_1).to(tl.int32)
        row += (offs >= end_2).to(tl.int32)
        values = load_packed(values_ptr, tail_ptr, places, mask, capacity, end, numel)
        columns = load_packed(indices_ptr, tail_indices_ptr, places, mask, capacity, end, numel)
        target = block * BLOCK + (row * ROW + columns.to(tl.int32))
        tl.store(raw_ptr + target, values, mask=mask & (target < numel))


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
    parts = _parts(head, tail, raw)
    _encode_kernel[(parts.starts.numel(),)](
        bits_of(raw), *parts, count, raw.numel(), parts.values.numel(), num_warps=1
    )


@costing(lambda head, tail, raw: _cost(raw, head))
def ssdc_decode(head: Tensor, tail: Tensor, raw: Tensor) -> None:
    """Decode what `ssdc_encode` made of a section of the same size."""
    if raw.numel() == 0:
        return
    parts, lane = _parts(head, tail, raw), 16 // raw.element_size()
    _decode_kernel[(parts.starts.numel(),)](
        *parts, bits_of(raw), raw.numel(), parts.values.numel(),
        V=lane, WHOLE=raw.numel() % lane == 0, num_warps=1,
    )  # fmt: skip


def encode_in_order(raw: Tensor, head: Tensor, tail: Tensor, count: Tensor, order: Tensor) -> None:
    """`ssdc_encode` in torch, whose blocks append in this order."""
    parts, values = _parts(head, tail, raw), in_blocks(bits_of(raw))
    present = values != 0
    ends = present.view(-1, ROWS.value, ROW.value).sum(2).cumsum(1)
    parts.ends.copy_(ends.flatten())
    starts, places = appended(present, count, order)
    parts.starts.copy_(starts)
    scatter_packed(values, present, places, parts.values, parts.tail)
    indices = torch.arange(BLOCK.value, device=raw.device).expand_as(values) % ROW.value
    scatter_packed(indices, present, places, parts.indices, parts.tail_indices)


def ssdc_encode_reference(raw: Tensor, head: Tensor, tail: Tensor, count: Tensor) -> None:
    order = torch.arange(num_blocks(raw.numel()), device=raw.device)
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

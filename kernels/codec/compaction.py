"""Compaction: the values of a section whose bits are not all zero, packed one behind the other.

A block is BLOCK values, seen as columns of LANES values. Its values are packed column by column.
Blocks append to what is packed in any order, by an atomic cursor, and a table says where each block
begins. The first values, up to a capacity, lie in the head of a code. The tail takes the others.

A group is four columns. A word counts the values of each column of a group in a byte of its own.
A program is one warp, and a lane is a thread: sums over lanes are shuffles, and the stores of a
column reach adjacent memory.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

LANES: Final = tl.constexpr(32)
BLOCK: Final = tl.constexpr(1024)  # values
GROUPS: Final = tl.constexpr(8)  # of a block
LOW: Final = tl.constexpr(0x01010101)  # lowest bit of each byte; a product with it sums bytes
ALIGNED_NBYTES: Final = 16  # packed values begin at a multiple
INTEGERS: Final = {2: torch.int16, 4: torch.int32}  # types that hold the bits of values, by bytes


@triton.jit
def raw_offsets(block, V: tl.constexpr) -> tl.tensor:
    """Offsets [BLOCK / V, V] of a block's values, int64."""
    rows, values = tl.arange(0, BLOCK // V), tl.arange(0, V)
    return block * BLOCK + (rows[:, None] * V + values[None, :])


@triton.jit
def raw_mask(block, numel, V: tl.constexpr, WHOLE: tl.constexpr) -> tl.tensor:
    """Which of a block's values exist, [BLOCK / V, V]; WHOLE: whole loads of V do."""
    left = tl.minimum(numel - block * BLOCK, BLOCK).to(tl.int32)
    rows, values = tl.arange(0, BLOCK // V), tl.arange(0, V)
    if WHOLE:
        mask = tl.broadcast_to((rows < left // V)[:, None], BLOCK // V, V)
    else:
        mask = rows[:, None] * V + values[None, :] < left
    return mask


@triton.jit
def byte_shifts() -> tl.tensor:
    """Shifts to the bytes of a word: uint32 [1, 4, 1]."""
    return (8 * tl.arange(0, 4)).to(tl.uint32)[None, :, None]


@triton.jit
def counts_of(values) -> tl.tensor:
    """Counts, 0 or 1, of integers [GROUPS, 4, LANES] that are not zero: uint32 [GROUPS, LANES]."""
    return tl.sum((values != 0).to(tl.uint32) << byte_shifts(), 1)


@triton.jit
def sizes_of(counts) -> tl.tensor:
    """How many values each group has: int32 [GROUPS]."""
    return ((tl.sum(counts, 1) * LOW) >> 24).to(tl.int32)


@triton.jit
def places_of(counts, sizes, first) -> tl.tensor:
    """Places of a block's values, column by column from `first` on: int32 [BLOCK].

    The sums of a group's columns, shifted and multiplied, are the numbers of values in the columns
    before each column. No byte overflows, as four columns have up to 128 values.
    """
    ranks = tl.cumsum(counts, 1) + ((tl.sum(counts, 1) * LOW) << 8)[:, None]  # from 1 on
    wide = tl.broadcast_to(sizes[:, None], counts.shape)
    before = tl.cumsum(wide, 0) - wide + (first - 1)
    within = ((ranks[:, None, :] >> byte_shifts()) & 0xFF).to(tl.int32)
    return (before[:, None, :] + within).reshape(BLOCK)


@triton.jit
def is_counted(counts) -> tl.tensor:
    """Which values counts [GROUPS, LANES] are of: bool [BLOCK], column by column."""
    return (((counts[:, None, :] >> byte_shifts()) & 1) != 0).reshape(BLOCK)


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


def num_blocks(numel: int) -> int:
    assert numel < 2**31, numel  # places are int32
    return triton.cdiv(numel, BLOCK.value)


def bits_of(raw: Tensor) -> Tensor:
    """The bits of a contiguous section's values: integers [numel] of the same size."""
    return raw.view(INTEGERS[raw.element_size()]).view(-1)


def in_blocks(bits: Tensor) -> Tensor:
    """A copy of values [numel] as blocks [blocks, BLOCK], with zeros behind the last value."""
    blocks = bits.new_zeros(num_blocks(bits.numel()) * BLOCK.value)
    blocks[: bits.numel()] = bits
    return blocks.view(-1, BLOCK.value)


def appended(present: Tensor, count: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Starts [blocks] and places [blocks, BLOCK], where blocks append to `count` in this order.

    `present` says which values there are, bool [blocks, BLOCK] in the order of packing.
    """
    sizes = present.sum(1)
    starts = torch.empty_like(sizes)
    starts[order] = sizes[order].cumsum(0) - sizes[order] + count
    count += sizes.sum()
    return starts, starts[:, None] + present.cumsum(1) - 1


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

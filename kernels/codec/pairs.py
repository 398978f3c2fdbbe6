"""Pairs: how the warps of a program hold blocks of a section, and where values that count go.

A block is BLOCK values. A tile is BLOCKS blocks, and a program of as many warps codes it. A lane
loads 16 bytes of its warp's block at once, and sees its values of the block as PAIRS pairs of
adjacent values. A block is packed pair by pair: those of all lanes, then the next pair of each.

A thread's bits say which of its values are not all zero: bit i is that of the low value of pair i,
bit 16 + i that of the high one. A group is four pairs. A word counts the values of each pair of a
group in a byte of its own. Sums over lanes are shuffles.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

LANES: Final = tl.constexpr(32)
PAIRS: Final = tl.constexpr(16)  # of a lane in a block
GROUPS: Final = tl.constexpr(4)  # of a block
BLOCKS: Final = tl.constexpr(4)  # of a tile, one a warp
THREADS: Final = tl.constexpr(128)
BLOCK: Final = tl.constexpr(1024)  # values
TILE: Final = tl.constexpr(4096)  # values
SPREAD: Final = tl.constexpr(0x00204081)  # a product with it has 4 bits at the low bits of 4 bytes
LOW: Final = tl.constexpr(0x01010101)  # lowest bit of each byte; a product with it sums bytes
LOAD_NBYTES: Final = 16  # of a lane
INTEGERS: Final = {2: torch.int16, 4: torch.int32}  # types that hold the bits of values, by bytes


@triton.jit
def loads_of(V: tl.constexpr) -> tl.tensor:
    """Which V values of its tile each load of a thread takes: int32 [TILE / V, 1]."""
    LOADS: tl.constexpr = BLOCK // V // LANES
    row = tl.arange(0, TILE // V)
    block, load = row // LANES % BLOCKS, row // (LANES * BLOCKS)
    return ((block * LOADS + load) * LANES + row % LANES)[:, None]


@triton.jit
def load_raw(raw_ptr, tile, numel, V: tl.constexpr, WHOLE: tl.constexpr) -> tl.tensor:
    """A tile's values, V a load: bits of 4-byte values, or words of two 2-byte values [rows, 4].

    WHOLE: loads are whole, and `raw_ptr` is one of words. The values are not read again soon.
    """
    left = tl.minimum(numel - tile * TILE, TILE).to(tl.int32)
    loads = loads_of(V)
    if WHOLE:
        ptrs = raw_ptr + tile * (TILE // V * 4) + (loads * 4 + tl.arange(0, 4)[None, :])
        words = tl.load(ptrs, mask=loads * V < left, other=0, eviction_policy="evict_first")
    elif V == 4:
        offs = loads * V + tl.arange(0, 4)[None, :]
        words = tl.load(raw_ptr + tile * TILE + offs, mask=offs < left, other=0)
    else:
        offs = _offsets_of_halves(loads)
        halves = tl.load(raw_ptr + tile * TILE + offs, mask=offs < left, other=0)
        wide = halves.to(tl.uint16, bitcast=True).to(tl.uint32)
        shifts = (16 * tl.arange(0, 2)).to(tl.uint32)[None, None, :]
        words = tl.sum(wide << shifts, 2).to(tl.int32, bitcast=True)
    return words


@triton.jit
def store_raw(raw_ptr, words, tile, numel, V: tl.constexpr, WHOLE: tl.constexpr) -> None:
    """Store a tile's words [rows, 4], as `load_raw` loads them."""
    left = tl.minimum(numel - tile * TILE, TILE).to(tl.int32)
    loads = loads_of(V)
    if WHOLE:
        ptrs = raw_ptr + tile * (TILE // V * 4) + (loads * 4 + tl.arange(0, 4)[None, :])
        tl.store(ptrs, words, mask=loads * V < left)
    elif V == 4:
        offs = loads * V + tl.arange(0, 4)[None, :]
        tl.store(raw_ptr + tile * TILE + offs, words, mask=offs < left)
    else:
        offs, halves = _offsets_of_halves(loads), tl.join(words, words >> 16).to(tl.int16)
        tl.store(raw_ptr + tile * TILE + offs, halves, mask=offs < left)


@triton.jit
def _offsets_of_halves(loads) -> tl.tensor:
    """Offsets [loads, 4, 2] of the values of loads of 8."""
    words = loads * 8 + 2 * tl.arange(0, 4)[None, :]
    return words[:, :, None] + tl.arange(0, 2)[None, None, :]


@triton.jit
def pair_shifts() -> tl.tensor:
    """Shifts to the bits of pairs: uint32 [PAIRS, 1]."""
    return tl.arange(0, PAIRS).to(tl.uint32)[:, None]


@triton.jit
def flags_of(bits) -> tl.tensor:
    """By pair, an integer that is not 0 where its low bit is set: uint32 [PAIRS * THREADS]."""
    return (bits[None, :] & (1 << pair_shifts())).reshape(PAIRS * THREADS)


@triton.jit
def pairs_of_halves(words) -> tuple[tl.tensor, tl.tensor]:
    """Words [rows, 4] of two 2-byte values each as pairs uint32 [PAIRS * THREADS], and their bits.

    A sum carries into the highest bit of each half of a word where another bit is set.
    """
    x = words.to(tl.uint32, bitcast=True).reshape(PAIRS // 4, THREADS, 4)
    pairs = x.permute(0, 2, 1).reshape(PAIRS, THREADS)
    marks = ((((pairs & 0x7FFF7FFF) + 0x7FFF7FFF) | pairs) >> 15) & 0x00010001
    return pairs.reshape(PAIRS * THREADS), tl.sum(marks << pair_shifts(), 0)


@triton.jit
def halves_of_pairs(pairs) -> tl.tensor:
    """The words [rows, 4] that `pairs_of_halves` takes, of pairs int32 [PAIRS * THREADS]."""
    x = pairs.reshape(PAIRS // 4, 4, THREADS).permute(0, 2, 1)
    return x.reshape(PAIRS // 4 * THREADS, 4)


@triton.jit
def pairs_of_words(words) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Values [rows, 4] as the low and high ones of pairs [PAIRS * THREADS], and their bits."""
    x = words.reshape(PAIRS // 2, THREADS, 2, 2).permute(0, 2, 1, 3)
    low, high = tl.split(x.reshape(PAIRS, THREADS, 2))
    marks = (low != 0).to(tl.uint32) + ((high != 0).to(tl.uint32) << 16)
    bits = tl.sum(marks << pair_shifts(), 0)
    return low.reshape(PAIRS * THREADS), high.reshape(PAIRS * THREADS), bits


@triton.jit
def words_of_pairs(low, high) -> tl.tensor:
    """The values [rows, 4] that `pairs_of_words` takes, of its pairs."""
    x = tl.join(low.reshape(PAIRS, THREADS), high.reshape(PAIRS, THREADS))
    x = x.reshape(PAIRS // 2, 2, THREADS, 2).permute(0, 2, 1, 3)
    return x.reshape(PAIRS // 2 * THREADS, 4)


@triton.jit
def load_pairs(
    raw_ptr, tile, numel, V: tl.constexpr, WHOLE: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """A tile's low and high values of pairs, integers [PAIRS * THREADS], and their bits.

    Above the bits of a low 2-byte value lie those of the high one.
    """
    words = load_raw(raw_ptr, tile, numel, V, WHOLE)
    if V == 8:
        low, bits = pairs_of_halves(words)
        high = low >> 16
    else:
        low, high, bits = pairs_of_words(words)
    return low, high, bits


@triton.jit
def ranks_of(bits) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Ranks of pairs in their tile, sizes of groups, and ranks of blocks.

    int32 [PAIRS * THREADS], [GROUPS, BLOCKS] and [BLOCKS]. The sums of a group's pairs, shifted and
    multiplied, are the numbers of values in the pairs before each. Ranks within a group are below
    256. Its size may be 256, which fits no byte.
    """
    nibble = (4 * tl.arange(0, GROUPS)).to(tl.uint32)[:, None]
    counts = (((bits[None, :] >> nibble) & 0xF) * SPREAD) & LOW
    counts += (((bits[None, :] >> (nibble + 16)) & 0xF) * SPREAD) & LOW
    counts = counts.reshape(GROUPS, BLOCKS, LANES)
    sums = tl.sum(counts, 2)
    pairs = (sums & 0x00FF00FF) + ((sums >> 8) & 0x00FF00FF)
    sizes = ((pairs + (pairs >> 16)) & 0xFFFF).to(tl.int32)
    blocks = tl.sum(sizes, 0)
    begins = tl.cumsum(blocks, 0) - blocks
    before = begins[None, :] + tl.cumsum(sizes, 0) - sizes
    ranks = tl.cumsum(counts, 2) - counts + ((sums * LOW) << 8)[:, :, None]
    shifts = (8 * tl.arange(0, 4)).to(tl.uint32)[None, :, None]
    within = ((ranks.reshape(GROUPS, THREADS)[:, None, :] >> shifts) & 0xFF).to(tl.int32)
    wide = tl.broadcast_to(before[:, :, None], GROUPS, BLOCKS, LANES).reshape(GROUPS, THREADS)
    return (wide[:, None, :] + within).reshape(PAIRS * THREADS), sizes, begins


@triton.jit
def total_of(sizes) -> tl.tensor:
    """The number of a tile's values, of the sizes of its groups."""
    return tl.sum(tl.sum(sizes, 0), 0)


@triton.jit
def blocks_exist(tile, numel) -> tl.tensor:
    """Which blocks of a tile have values of the section: bool [BLOCKS]."""
    return tile * TILE + tl.arange(0, BLOCKS) * BLOCK < numel


def num_blocks(numel: int) -> int:
    assert numel < 2**31, numel  # places are int32
    return triton.cdiv(numel, BLOCK.value)


def num_tiles(numel: int) -> int:
    return triton.cdiv(numel, TILE.value)


def bits_of(raw: Tensor) -> Tensor:
    """The bits of a contiguous section's values: integers [numel] of the same size."""
    return raw.view(INTEGERS[raw.element_size()]).view(-1)


def settings_of(raw: Tensor) -> dict[str, int | bool]:
    """Constants of a launch: values a load, and whether loads are whole."""
    lane = LOAD_NBYTES // raw.element_size()
    whole = raw.numel() % lane == 0 and raw.storage_offset() % lane == 0
    return {"V": lane, "WHOLE": whole}


def raw_of(raw: Tensor) -> Tensor:
    """The section as kernels load it: words where loads are whole, else bits of values."""
    bits = bits_of(raw)
    return bits.view(torch.int32) if settings_of(raw)["WHOLE"] else bits


def in_order(blocks: Tensor) -> Tensor:
    """Values [blocks, BLOCK] in the order of packing."""
    return blocks[:, _order(blocks)]


def out_of_order(values: Tensor) -> Tensor:
    """The opposite of `in_order`."""
    blocks = torch.empty_like(values)
    blocks[:, _order(values)] = values
    return blocks


def _order(blocks: Tensor) -> Tensor:
    """Places within a block, int64 [BLOCK], of the values in the order of packing."""
    pairs = LOAD_NBYTES // blocks.element_size() // 2
    shape = (PAIRS.value // pairs, LANES.value, pairs, 2)
    places = torch.arange(BLOCK.value, device=blocks.device).view(shape)
    return places.transpose(1, 2).flatten()

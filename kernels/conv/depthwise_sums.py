"""Sums of a depthwise convolution's weight gradient, a tensor for each tap of a filter."""

from dataclasses import dataclass
from typing import Final

import triton
import triton.language as tl
from triton import cdiv

from .tiles import Pair

BLOCKS_C: Final = (64, 32, 16)  # channels of a program
MOST_AT_ONCE: Final = 16  # taps summed over rows at once: more take shared memory from L1


@dataclass(frozen=True, slots=True)
class DepthwisePlan:
    """The running sums of a weight gradient: float32 [splits, C, R, S, 1].

    Every launch of a batch after the first must start at a multiple of `unit` samples.
    """

    splits: int
    unit: int


def block_of(channels: int) -> int:
    """Channels of a program that sums: most, among those whose lanes are in use, or nearly so."""
    used = {each: channels / (cdiv(channels, each) * each) for each in BLOCKS_C}
    best = max(BLOCKS_C, key=lambda each: (min(used[each], 0.9), each))
    return min(best, triton.next_power_of_2(channels))


def pieces_of(taps: int) -> tuple[Pair, ...]:
    """First taps and numbers of taps that are summed at once, powers of two."""
    pieces, first = [], 0
    while first < taps:
        count = min(MOST_AT_ONCE, 1 << (taps - first).bit_length() - 1)
        pieces.append((first, count))
        first += count
    return tuple(pieces)


@triton.jit
def _stacked(sums, FIRST: tl.constexpr, COUNT: tl.constexpr) -> tl.tensor:
    """Tensors FIRST on as one with an axis of COUNT, a power of two; without one for COUNT 1."""
    if COUNT == 1:
        stacked = sums[FIRST]
    else:
        half: tl.constexpr = COUNT // 2
        stacked = ()
        for i in tl.static_range(half):
            stacked += (tl.join(sums[FIRST + i], sums[FIRST + half + i]),)
        stacked = _stacked(stacked, 0, half)
    return stacked


@triton.jit
def add_sums(ptrs, sums, mask, older, left, PIECES: tl.constexpr) -> None:
    """Add sums [ROWS, BLOCK_C] of taps over rows to the sums at `ptrs` [BLOCK_C, 1].

    A piece, the first of its taps and their number, is summed at once: each sum takes barriers.
    `left` taps have places. If not `older` no sums are there yet. `mask` is of [BLOCK_C, 1].
    """
    totals = ()
    for i in tl.static_range(len(PIECES)):
        taps = PIECES[i][0] + tl.arange(0, PIECES[i][1])[None, :]
        total = tl.load(ptrs + taps, mask=mask & (taps < left) & older, other=0.0)
        totals += (total,)
    for i in tl.static_range(len(PIECES)):
        taps = PIECES[i][0] + tl.arange(0, PIECES[i][1])[None, :]
        total = tl.sum(_stacked(sums, PIECES[i][0], PIECES[i][1]), 0)
        total = totals[i] + total.reshape(totals[i].shape)
        tl.store(ptrs + taps, total, mask=mask & (taps < left))
    tl.debug_barrier()  # other threads may load what this one stored

"""What the weight-gradient kernels share: which part a program takes, and its running sum.

A unit of samples is cut into steps of pixels, and split j takes the same share of every unit.
"""

import triton
import triton.language as tl


@triton.jit
def part_of(
    pid, tiles_k, tiles_c,
    NUM_TAPS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """First output channel, first input channel, tap and split of a program."""
    tap = pid % NUM_TAPS
    c = pid // NUM_TAPS % tiles_c * BLOCK_C
    k = pid // (NUM_TAPS * tiles_c) % tiles_k * BLOCK_K
    return k, c, tap, pid // (NUM_TAPS * tiles_c * tiles_k)


@triton.jit
def share_of(split, splits, steps) -> tuple[tl.tensor, tl.tensor]:
    """First of the steps of a unit that a split takes, and how many it takes."""
    share = tl.cdiv(steps, splits)
    start = split * share
    return start, tl.maximum(tl.minimum(share, steps - start), 0)


@triton.jit
def turns_of(start, share, unit, num_samples, last) -> tl.tensor:
    """Steps that a split takes over all units; `last` are those of a unit that is not whole."""
    return num_samples // unit * share + tl.minimum(tl.maximum(last - start, 0), share)


@triton.jit
def load_sum(
    sums_desc, split, k, tap, c, first, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """The sum that earlier launches left, [BLOCK_K, BLOCK_C]; the first finds zeros, outside."""
    split = tl.where(first != 0, -1, split)
    return sums_desc.load([split, k, tap, c]).reshape(BLOCK_K, BLOCK_C)


@triton.jit
def store_sum(
    sums_desc, acc, split, k, tap, c, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr
) -> None:  # fmt: skip
    """Leave the sum to the next launch."""
    sums_desc.store([split, k, tap, c], acc.reshape(1, BLOCK_K, 1, BLOCK_C))

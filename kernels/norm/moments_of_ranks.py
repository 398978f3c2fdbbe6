"""Batch statistics over processes: the moments of each one's rows, and their merge.

Each process has a slot for its number of rows and its mean and M2 of each channel, and zeros in the
slots of others. The sum over processes then has all slots, to the same bits in each, and the merge
goes by their order (Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983).
"""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from .running_stats import count_kernel, track_batch, track_running

BLOCK: Final = 64  # channels of a program
MOMENTS: Final = 3  # of a slot: rows, mean, M2


@triton.jit(do_not_specialize=["rank", "rows"])
def _own_slot_kernel(statistics_ptr, slots_ptr, channels, rank, rows, BLOCK_C: tl.constexpr):
    """The second grid axis is the process of the slot."""
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = c < channels
    slot = tl.program_id(1)
    own = inside & (slot == rank)
    count = rows.to(tl.float32)
    mean = tl.load(statistics_ptr + c, mask=own, other=0.0)
    variance = tl.load(statistics_ptr + 2 * channels + c, mask=own, other=0.0)
    ptrs = slots_ptr + slot * 3 * channels + c
    tl.store(ptrs, tl.where(own, count, 0.0), mask=inside)
    tl.store(ptrs + channels, mean, mask=inside)
    tl.store(ptrs + 2 * channels, variance * tl.maximum(count - 1.0, 1.0), mask=inside)


@triton.jit(do_not_specialize=["rank", "world"])
def _merge_slots_kernel(
    slots_ptr, statistics_ptr, share_ptr, running_mean_ptr, running_var_ptr, num_batches_ptr,
    flag_ptr, channels, world, rank, eps, momentum, CUMULATIVE: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = c < channels
    about = tl.load(slots_ptr + channels + c, mask=inside, other=0.0)
    total = tl.zeros((BLOCK_C,), tl.float32)
    sums = tl.zeros((BLOCK_C,), tl.float32)
    squares = tl.zeros((BLOCK_C,), tl.float32)
    for slot in range(world):
        ptrs = slots_ptr + slot * 3 * channels + c
        rows = tl.load(ptrs, mask=inside, other=0.0)
        off = tl.load(ptrs + channels, mask=inside, other=0.0) - about
        total += rows
        sums = tl.fma(rows, off, sums)
        squares += tl.fma(rows * off, off, tl.load(ptrs + 2 * channels, mask=inside, other=0.0))
    count = tl.maximum(total, 1.0)
    off = sums / count
    mean = about + off
    square = tl.maximum(squares - off * off * count, 0.0)
    variance = square / tl.maximum(total - 1.0, 1.0)
    tl.store(statistics_ptr + c, mean, mask=inside)
    tl.store(statistics_ptr + channels + c, 1.0 / tl.sqrt_rn(square / count + eps), mask=inside)
    tl.store(statistics_ptr + 2 * channels + c, variance, mask=inside)
    if tl.program_id(0) == 0:
        tl.store(share_ptr, tl.load(slots_ptr + rank * 3 * channels))
        tl.store(share_ptr + 1, tl.max(total, 0))
    track_batch(
        running_mean_ptr, running_var_ptr, num_batches_ptr, flag_ptr, mean, variance, momentum,
        c, inside, CUMULATIVE,
    )  # fmt: skip


def own_slot(statistics: Tensor, slots: Tensor, *, rank: int, rows: int) -> None:
    """slots float32 [processes, 3, C]: rows, mean and M2 of this process at `rank`, else zeros.

    `statistics` [3, C] are those of its rows alone, as `batch_norm_statistics` leaves them.
    """
    world, _, channels = slots.shape
    grid = (triton.cdiv(channels, BLOCK), world)
    _own_slot_kernel[grid](statistics, slots, channels, rank, rows, BLOCK_C=BLOCK, num_warps=1)


def merge_slots(
    slots: Tensor, statistics: Tensor, share: Tensor, running_mean: Tensor | None,
    running_var: Tensor | None, num_batches: Tensor | None, *,
    rank: int, momentum: float | None, eps: float, flag: Tensor | None = None,
) -> None:  # fmt: skip
    """The statistics [3, C] of the rows of all processes, from the sum of their `own_slot`.

    `share` float32 [2] gets the rows of the process at `rank`, and those of all. Running statistics
    and the number of batches are those of `batch_norm_statistics`.
    """
    world, _, channels = slots.shape
    if momentum is None:  # all programs read the count
        count_kernel[(1,)](num_batches, flag)
    _merge_slots_kernel[(triton.cdiv(channels, BLOCK),)](
        slots, statistics, share, running_mean, running_var, num_batches, flag,
        channels, world, rank, float(eps), 0.0 if momentum is None else float(momentum),
        CUMULATIVE=momentum is None, BLOCK_C=BLOCK, num_warps=1,
    )  # fmt: skip


def own_slot_reference(statistics: Tensor, slots: Tensor, *, rank: int, rows: int) -> None:
    """Computes `own_slot` in torch."""
    slots.zero_()
    mean, _, variance = statistics
    slots[rank, 0], slots[rank, 1] = rows, mean
    slots[rank, 2] = variance.double() * max(1, rows - 1)


def merge_slots_reference(
    slots: Tensor, statistics: Tensor, share: Tensor, running_mean: Tensor | None,
    running_var: Tensor | None, num_batches: Tensor | None, *,
    rank: int, momentum: float | None, eps: float, flag: Tensor | None = None,
) -> None:  # fmt: skip
    """Computes `merge_slots` in torch."""
    rows, means, squares = slots.double().unbind(1)
    total = rows.sum(0)
    mean = (rows * means).sum(0) / total
    square = (squares + rows * (means - mean).square()).sum(0)
    statistics[0], statistics[1] = mean, (square / total + eps).rsqrt()
    statistics[2] = square / (total - 1.0).clamp(min=1.0)
    share[0], share[1] = rows[rank, 0], total[0]
    track_running(statistics, running_mean, running_var, num_batches, momentum, flag)

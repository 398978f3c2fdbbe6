"""Loads of the moments of slices, and updates of running statistics."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .batch_norm_tiles import slice_at


@triton.jit
def mean_about(values, weights, total) -> tl.tensor:
    """The weighted mean [C] of the rows of values [R, C]. The weights' sum is `total`."""
    return tl.sum(values * weights, 0) / tl.maximum(total, 1.0)


@triton.jit
def load_moments(
    partials_ptr, p, c, mask_c, count, num_rows, group_rows, slice_rows, splits, pitch
) -> tl.tuple:
    """Numbers of rows [BLOCK_P, 1], means and squares [BLOCK_P, BLOCK_C] of slices p."""
    _, rows = slice_at(p, num_rows, group_rows, slice_rows, splits)
    rows = tl.where(p < count, rows, 0).to(tl.float32)[:, None]
    mask = (p < count)[:, None] & mask_c[None, :]
    ptrs = partials_ptr + p[:, None] * 2 * pitch + c[None, :]
    means = tl.load(ptrs, mask=mask, other=0.0)
    return rows, means, tl.load(ptrs + pitch, mask=mask, other=0.0)


@triton.jit
def track(ptr, value, factor, c, mask_c) -> None:
    """running = (1 - factor) * running + factor * value, for channels c."""
    running = tl.load(ptr + c, mask=mask_c, other=0.0)
    tl.store(ptr + c, tl.fma(factor, value, (1.0 - factor) * running), mask=mask_c)


@triton.jit
def is_tracking(flag_ptr) -> tl.tensor:
    """Whether running statistics may change: no flag is given, or it is 0."""
    tracks = True
    if flag_ptr is not None:
        tracks = tl.load(flag_ptr) == 0.0
    return tracks


@triton.jit
def track_batch(
    running_mean_ptr, running_var_ptr, num_batches_ptr, flag_ptr, mean, variance, momentum,
    c, mask_c, CUMULATIVE: tl.constexpr,
) -> None:  # fmt: skip
    """One step of the running statistics, where given, by those of a batch for channels c.

    The first program counts the batch, which `count_kernel` has done where CUMULATIVE.
    """
    factor = momentum
    if CUMULATIVE:
        factor = 1.0 / tl.load(num_batches_ptr).to(tl.float32)
    elif num_batches_ptr is not None and tl.program_id(0) == 0:
        tl.store(num_batches_ptr, tl.load(num_batches_ptr) + 1, mask=is_tracking(flag_ptr))
    if running_mean_ptr is not None:
        kept = mask_c & is_tracking(flag_ptr)
        track(running_mean_ptr, mean, factor, c, kept)
        track(running_var_ptr, variance, factor, c, kept)


@triton.jit
def count_kernel(num_batches_ptr, flag_ptr) -> None:
    """Count a batch, where running statistics may change."""
    tl.store(num_batches_ptr, tl.load(num_batches_ptr) + 1, mask=is_tracking(flag_ptr))


def track_running(
    statistics: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    num_batches: Tensor | None,
    momentum: float | None,
    flag: Tensor | None,
) -> None:
    """One step of the running statistics in torch, by the statistics [3, C] of a batch."""
    tracks = statistics.new_ones(()) if flag is None else (flag[0] == 0.0).to(statistics.dtype)
    if num_batches is not None:
        num_batches += tracks.to(num_batches.dtype)
    if running_mean is None or running_var is None:
        return
    for running, value in ((running_mean, statistics[0]), (running_var, statistics[2])):
        if momentum is None:
            assert num_batches is not None
            factor = 1.0 / num_batches.double()
            moved = running * (1.0 - factor) + value * factor
        else:
            moved = (running * (1.0 - momentum)).add(value, alpha=momentum)
        running.copy_(torch.where(tracks != 0.0, moved.to(running.dtype), running))

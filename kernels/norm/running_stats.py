"""Loads of the moments of slices, and updates of running statistics."""

import triton
import triton.language as tl

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

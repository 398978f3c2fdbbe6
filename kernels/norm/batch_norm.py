"""Batch normalization of maps [N, ..., C] (Ioffe and Szegedy 2015): statistics and outputs.

In training the moments of slices of rows, mean and sum of squares about it, are merged in a fixed
order to the moments of the batch. Sums are taken about the mean of a slice's first rows. With f
first rows of n the slice's own mean lies at most sqrt(n / f) standard deviations away, and no sum
cancels. Statistics are float32 [3, C]: the mean, 1 / sqrt(variance + eps), and the unbiased
variance, which running statistics take. Maps, and the moments of slices, may be channel ranges.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final, TypeAlias

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..codec.sign_bits import packed_signs, packed_signs_reference, words_of
from ..language.rounding import as_stored, stored, stored_reference
from ..pointwise.activation import activate_reference
from ..pointwise.activation_math import activated, rectified_reference
from . import batch_norm_tiles as tiles
from .batch_norm_tiles import in_tile, normalized, normalizer, offsets, place_of, slice_at, words_at
from .running_stats import (
    count_kernel,
    load_moments,
    mean_about,
    track_batch,
    track_running,
)
from .written_tiles import columns_at, mask_at, written_tiles

RECALLED: Final = 128  # channels of a program that reads running statistics
Normalizer: TypeAlias = tuple[Tensor, Tensor | None, Tensor | None]  # statistics, weight and bias


@triton.jit(do_not_specialize=["num_rows", "group_rows", "slice_rows", "splits"])
def _moments_kernel(
    x_ptr, partials_ptr, num_rows, channels, pitch, partials_pitch,
    group_rows, slice_rows, splits,
    ALIGN: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A program finds the mean, and the sum of squares about it, of BLOCK_C channels of a slice."""
    part, c, mask_c = place_of(tl.program_id(0), channels, ALIGN, BLOCK_C)
    start, count = slice_at(part, num_rows, group_rows, slice_rows, splits)
    mask = in_tile(count, mask_c, BLOCK_R)
    ptrs = x_ptr + offsets(start, c, pitch, ALIGN, BLOCK_R)
    x = tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
    about = mean_about(x, mask.to(tl.float32), tl.minimum(count, BLOCK_R).to(tl.float32))
    off = tl.where(mask, x - about[None, :], 0.0)
    sums, squares = off, off * off
    for first in tl.range(BLOCK_R, count, BLOCK_R, num_stages=STAGES):
        mask = in_tile(count - first, mask_c, BLOCK_R)
        ptrs = x_ptr + offsets(start + first, c, pitch, ALIGN, BLOCK_R)
        x = tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
        off = tl.where(mask, x - about[None, :], 0.0)
        sums += off
        squares = tl.fma(off, off, squares)
    off = tl.sum(sums, 0) / tl.maximum(count, 1).to(tl.float32)
    square = tl.sum(squares, 0) - off * off * count
    ptrs = partials_ptr + part * 2 * partials_pitch + c
    tl.store(ptrs, about + off, mask=mask_c)
    tl.store(ptrs + partials_pitch, tl.maximum(square, 0.0), mask=mask_c)


@triton.jit(do_not_specialize=["count", "num_rows", "group_rows", "slice_rows", "splits"])
def _statistics_kernel(
    partials_ptr, statistics_ptr, running_mean_ptr, running_var_ptr, num_batches_ptr, flag_ptr,
    count, num_rows, channels, pitch, group_rows, slice_rows, splits, eps, momentum,
    CUMULATIVE: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A program merges the moments of all slices. Sums are about the mean of the first slices."""
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask_c = c < channels
    p = tl.arange(0, BLOCK_P)
    rows, means, squares = load_moments(
        partials_ptr, p, c, mask_c, count, num_rows, group_rows, slice_rows, splits, pitch
    )
    about = mean_about(means, rows, tl.sum(rows, 0))
    off = means - about[None, :]
    sums = rows * off
    squares = tl.fma(sums, off, squares)
    for first in tl.range(BLOCK_P, count, BLOCK_P, num_stages=STAGES):
        rows, means, more = load_moments(
            partials_ptr, first + p, c, mask_c, count,
            num_rows, group_rows, slice_rows, splits, pitch,
        )  # fmt: skip
        off = means - about[None, :]
        sums = tl.fma(rows, off, sums)
        squares += tl.fma(rows * off, off, more)
    total = num_rows.to(tl.float32)
    off = tl.sum(sums, 0) / total
    mean = about + off
    square = tl.maximum(tl.sum(squares, 0) - off * off * total, 0.0)
    variance = square / tl.maximum(total - 1.0, 1.0)
    ptrs = statistics_ptr + c
    tl.store(ptrs, mean, mask=mask_c)
    tl.store(ptrs + channels, 1.0 / tl.sqrt_rn(square / total + eps), mask=mask_c)
    tl.store(ptrs + 2 * channels, variance, mask=mask_c)
    track_batch(
        running_mean_ptr, running_var_ptr, num_batches_ptr, flag_ptr, mean, variance, momentum,
        c, mask_c, CUMULATIVE,
    )  # fmt: skip


@triton.jit
def _recall_kernel(
    running_mean_ptr, running_var_ptr, statistics_ptr, channels, eps, BLOCK_C: tl.constexpr
):
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = c < channels
    variance = tl.load(running_var_ptr + c, mask=mask, other=0.0)
    tl.store(statistics_ptr + c, tl.load(running_mean_ptr + c, mask=mask, other=0.0), mask=mask)
    tl.store(statistics_ptr + channels + c, 1.0 / tl.sqrt_rn(variance + eps), mask=mask)
    tl.store(statistics_ptr + 2 * channels + c, variance, mask=mask)


@triton.jit
def function_of(y, coefficient, FUNCTION: tl.constexpr) -> tl.tensor:
    """ReLU of float32 y, or one of `activation.FUNCTIONS`."""
    return tl.where(y <= 0, 0.0, y) if FUNCTION == "relu" else activated(y, coefficient, FUNCTION)


@triton.jit(do_not_specialize=["num_rows", "steps"])
def _normalize_kernel(
    x_ptr, statistics_ptr, weight_ptr, bias_ptr, residual_ptr, residual_statistics_ptr,
    residual_weight_ptr, residual_bias_ptr, y_ptr, signs_ptr,
    num_rows, channels, width, steps, y_pitch, x_pitch, residual_pitch, coefficient,
    FUNCTION: tl.constexpr, PRECISION: tl.constexpr, C_ALIGN: tl.constexpr, RUNS: tl.constexpr,
    ALIGN: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    out: tl.constexpr = y_ptr.dtype.element_ty
    channels = channels // C_ALIGN * C_ALIGN
    number, column, c, mask_c = columns_at(channels, width, C_ALIGN, RUNS, ALIGN, BLOCK_C)
    at = normalizer(statistics_ptr, weight_ptr, bias_ptr, c, mask_c, channels)
    if residual_statistics_ptr is not None:
        residual_at = normalizer(
            residual_statistics_ptr, residual_weight_ptr, residual_bias_ptr, c, mask_c, channels
        )
    for step in range(steps):
        start = (number * steps + step) * BLOCK_R
        mask = mask_at(
            start, column, mask_c, num_rows, channels, width, RUNS, ALIGN, BLOCK_R, BLOCK_C
        )
        ptrs = x_ptr + offsets(start, column, x_pitch, ALIGN, BLOCK_R)
        y = normalized(tl.load(ptrs, mask=mask, other=0.0).to(tl.float32), *at)
        if residual_ptr is not None:
            ptrs = residual_ptr + offsets(start, column, residual_pitch, ALIGN, BLOCK_R)
            residual = tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
            if residual_statistics_ptr is not None:
                residual = normalized(residual, *residual_at).to(out).to(tl.float32)
            y = y.to(out).to(tl.float32) + residual
        if FUNCTION == "relu":
            y = function_of(y.to(out).to(tl.float32), coefficient, FUNCTION)
        elif FUNCTION != "":
            y = function_of(as_stored(y, out), coefficient, FUNCTION)
        y = stored(y.to(out), out, PRECISION)
        tl.store(y_ptr + offsets(start, column, y_pitch, ALIGN, BLOCK_R), y, mask=mask)
        if signs_ptr is not None:
            dtype: tl.constexpr = signs_ptr.dtype.element_ty
            words = channels // dtype.primitive_bitwidth
            offs, mask = words_at(start, num_rows - start, channels, words, dtype, BLOCK_R, BLOCK_C)
            tl.store(signs_ptr + offs, packed_signs(y.to(tl.float32), dtype), mask=mask)


def batch_norm_moments(x: Tensor, partials: Tensor, *, group: int) -> None:
    """The moments of each slice of the rows of x [n, ..., C]: mean, and sum of squares about it.

    partials are float32 [ceil(n / group), splits, 2, C], the shape of a `BatchNormPlan`. x must
    start at a group's first sample. x is read once.
    """
    cut = tiles.slices_of(x.shape, partials, group)
    channels = x.shape[-1]
    tile = tiles.summing(x)
    grid = (cut.count * triton.cdiv(channels, tile["BLOCK_C"]),)
    _moments_kernel[grid](
        x, partials, cut.rows, channels, tiles.pitch_of(x), tiles.pitch_of(partials),
        cut.group_rows, cut.slice_rows, cut.splits, **tile,
    )  # fmt: skip


def batch_norm_statistics(
    partials: Tensor, statistics: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    num_batches: Tensor | None, *,
    shape: tuple[int, ...], group: int, momentum: float | None, eps: float,
    flag: Tensor | None = None,
) -> None:  # fmt: skip
    """The statistics [3, C] of a batch of maps of `shape`, and one step of the running statistics.

    A running statistic r becomes (1 - momentum) r + momentum s with the batch's statistic s.
    Without a momentum it becomes the mean over all batches. num_batches, int64 of one element,
    counts the batches and is raised by 1. Neither changes where the float32 `flag` [1] is given and
    not 0.
    """
    cut = tiles.slices_of(shape, partials, group)
    channels = shape[-1]
    if momentum is None:  # all programs read the count
        count_kernel[(1,)](num_batches, flag)
    _statistics_kernel[(triton.cdiv(channels, tiles.MERGED["BLOCK_C"]),)](
        partials, statistics, running_mean, running_var, num_batches, flag,
        cut.count, cut.rows, channels, tiles.pitch_of(partials),
        cut.group_rows, cut.slice_rows, cut.splits,
        float(eps), 0.0 if momentum is None else float(momentum), CUMULATIVE=momentum is None,
        **tiles.MERGED,
    )  # fmt: skip


def batch_norm_recall(
    running_mean: Tensor, running_var: Tensor, statistics: Tensor, *, eps: float
) -> None:
    """The statistics [3, C] that running mean and running variance [C] give."""
    channels, block_c = statistics.shape[1], RECALLED
    _recall_kernel[(triton.cdiv(channels, block_c),)](
        running_mean, running_var, statistics, channels, float(eps), BLOCK_C=block_c, num_warps=1
    )


def batch_norm(
    x: Tensor, statistics: Tensor, weight: Tensor | None, bias: Tensor | None,
    residual: Tensor | None, y: Tensor, signs: Tensor | None = None, *,
    residual_by: Normalizer | None = None,
    function: str = "", coefficient: float = 0.0, precision: str = "ieee",
) -> None:  # fmt: skip
    """y = function((x - mean) / sqrt(variance + eps) * weight + bias + residual).

    `function` is "relu", one of `activation.FUNCTIONS` with its coefficient, or "" for none. Values
    are rounded to y's type after each step, as separate ops would round them, and last as products
    of `precision` read them. With `residual_by` the residual is first normalized by these
    statistics, weight and bias. `signs` uint8 [..., C / 8] get the sign bits of y. y may be the
    residual. Each map is moved once.
    """
    if x.numel() == 0:
        return
    channels = x.shape[-1]
    tile = written_tiles(y, x, residual, signs=signs is not None)
    _normalize_kernel[tile.grid](
        x, statistics, weight, bias, residual, *(residual_by or (None, None, None)), y,
        None if signs is None else words_of(signs, channels),
        x.numel() // channels, channels, tile.width, tile.steps, *tile.pitches, float(coefficient),
        FUNCTION=function, PRECISION=precision, **tile.constants,
    )  # fmt: skip


def batch_norm_moments_reference(x: Tensor, partials: Tensor, *, group: int) -> None:
    """Computes `batch_norm_moments` in torch."""
    rows = x.reshape(-1, x.shape[-1]).double()
    found = partials.view(-1, *partials.shape[2:])
    for (start, stop), (mean, square) in zip(
        tiles.slice_ranges(x.shape, partials, group), found, strict=True
    ):
        members = rows[start:stop]
        exact = members.sum(0) / max(1, stop - start)
        mean.copy_(exact)
        square.copy_((members - exact).square().sum(0))


def batch_norm_statistics_reference(
    partials: Tensor, statistics: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    num_batches: Tensor | None, *,
    shape: tuple[int, ...], group: int, momentum: float | None, eps: float,
    flag: Tensor | None = None,
) -> None:  # fmt: skip
    """Computes `batch_norm_statistics` in torch."""
    counts = [stop - start for start, stop in tiles.slice_ranges(shape, partials, group)]
    rows, total = _column(counts, partials.device), float(sum(counts))
    means, squares = partials.view(-1, *partials.shape[2:]).double().unbind(1)
    mean = (rows * means).sum(0) / total
    square = (squares + rows * (means - mean).square()).sum(0)
    statistics[0], statistics[1] = mean, (square / total + eps).rsqrt()
    statistics[2] = square / max(1.0, total - 1.0)
    track_running(statistics, running_mean, running_var, num_batches, momentum, flag)


def _column(values: Sequence[int], device: torch.device) -> Tensor:
    """The values as float64 [n, 1], made on the device because a capture allows no copies to it."""
    runs = [(value, len(list(group))) for value, group in groupby(values)]
    parts = [torch.full((n, 1), value, dtype=torch.float64, device=device) for value, n in runs]
    return torch.cat(parts)


def batch_norm_recall_reference(
    running_mean: Tensor, running_var: Tensor, statistics: Tensor, *, eps: float
) -> None:
    """Computes `batch_norm_recall` in torch."""
    statistics[0], statistics[2] = running_mean, running_var
    statistics[1] = (running_var.double() + eps).rsqrt()


def batch_norm_reference(
    x: Tensor, statistics: Tensor, weight: Tensor | None, bias: Tensor | None,
    residual: Tensor | None, y: Tensor, signs: Tensor | None = None, *,
    residual_by: Normalizer | None = None,
    function: str = "", coefficient: float = 0.0, precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `batch_norm` in torch."""
    total = normalized_reference(x, statistics, weight, bias, y.dtype)
    if residual is not None:
        if residual_by is not None:
            residual = normalized_reference(residual, *residual_by, y.dtype)
        total = (total.float() + residual.float()).to(y.dtype)
    if function == "relu":
        total = rectified_reference(total)
    elif function:
        activate_reference(total, total, function=function, coefficient=coefficient)
    y.copy_(stored_reference(total, y.dtype, precision))
    if signs is not None:
        signs.copy_(packed_signs_reference(y))


def normalized_reference(
    x: Tensor, statistics: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """x normalized by `statistics`, weight and bias, computed in float64 and rounded to `dtype`."""
    y = (x.double() - statistics[0]) * (statistics[1] if weight is None else statistics[1] * weight)
    y = y if bias is None else y + bias
    return y.float().to(dtype)

"""Group normalization (Wu and He 2018). With one channel a group it is instance normalization.

y = (x - mean) / sqrt(variance + eps) * weight + bias, with mean and variance of a group of channels
over the pixels of a sample. Means and squared deviations are found by channel for chunks of pixels,
and then merged by group. The gradient's sums are found in the same two steps.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.channel_chunks import chunk_of, chunk_place, launch_chunks, num_chunks
from ..language.rounding import stored, stored_reference

GROUPED: Final = 64  # channels of a program that merges chunks
MERGED: Final = 2048  # values of chunks that a program loads together


@triton.jit
def _load(ptrs, mask):
    return tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _param(ptr, c, channels, ABSENT: tl.constexpr):
    """Channels c of a parameter, or ABSENT where there is none."""
    values = tl.full(c.shape, ABSENT, tl.float32)
    if ptr is not None:
        values = tl.load(ptr + c, mask=c < channels, other=0.0)
    return values


@triton.jit
def _moments_of(moments_ptr, sample, c, channels, groups):
    """Means and inverse deviations of the groups that channels c [1, C] belong to."""
    ptrs = moments_ptr + (sample * groups + c // (channels // groups)) * 2
    mean = tl.load(ptrs, mask=c < channels, other=0.0)
    return mean, tl.load(ptrs + 1, mask=c < channels, other=0.0)


@triton.jit(do_not_specialize=["pixels", "chunks", "chunk"])
def _chunk_moments_kernel(
    x_ptr, partials_ptr, pixels, channels, chunks, chunk,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Means and squared deviations by channel of a chunk, summed about the first tile's means."""
    sample, start, stop, p, c = chunk_place(pixels, chunks, chunk, PIXELS, CHANNELS)
    x_ptrs = x_ptr + (sample * pixels + start + p) * channels + c
    x = _load(x_ptrs, (start + p < stop) & (c < channels))
    pivot = tl.sum(x, 0, keep_dims=True) / tl.minimum(stop - start, PIXELS)
    total = tl.zeros((PIXELS, CHANNELS), tl.float32)
    squares = tl.zeros((PIXELS, CHANNELS), tl.float32)
    for first in range(start, stop, PIXELS):
        mask = (first + p < stop) & (c < channels)
        x = _load(x_ptr + (sample * pixels + first + p) * channels + c, mask)
        centred = tl.where(mask, x - pivot, 0.0)
        total += centred
        squares += centred * centred
    shift = tl.sum(total, 0, keep_dims=True) / (stop - start)
    deviation = tl.sum(squares, 0, keep_dims=True) - shift * shift * (stop - start)
    ptrs = partials_ptr + tl.program_id(0).to(tl.int64) * 2 * channels + c
    tl.store(ptrs, pivot + shift, mask=c < channels)
    tl.store(ptrs + channels, tl.maximum(deviation, 0.0), mask=c < channels)


@triton.jit
def _place(pixels, channels, groups, GROUPS: tl.constexpr, WIDTH: tl.constexpr):
    """A program's sample (int64), groups [1, G, 1], their channels [1, G, W] and mask, and values.

    The values are the number of elements of a group, float32.
    """
    sample = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)[None, :, None]
    member = tl.arange(0, WIDTH)[None, None, :]
    width = channels // groups
    c, mask = group * width + member, (group < groups) & (member < width)
    return sample, group, c, mask, (pixels * (channels // groups)).to(tl.float32)


@triton.jit(do_not_specialize=["pixels", "chunks", "chunk"])
def _group_moments_kernel(
    partials_ptr, moments_ptr, pixels, channels, groups, chunks, chunk, eps,
    CHUNKS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Means and inverse deviations of groups, from the moments of chunks."""
    sample, group, c, in_map, count = _place(pixels, channels, groups, GROUPS, WIDTH)
    total = tl.zeros((CHUNKS, GROUPS, WIDTH), tl.float32)
    for first in range(0, chunks, CHUNKS):
        j = first + tl.arange(0, CHUNKS)[:, None, None]
        ptrs = partials_ptr + ((sample * chunks + j) * 2) * channels + c
        size = tl.minimum(pixels - j * chunk, chunk).to(tl.float32)
        total += size * tl.load(ptrs, mask=(j < chunks) & in_map, other=0.0)
    mean = _whole(total) / count
    total = tl.zeros((CHUNKS, GROUPS, WIDTH), tl.float32)
    for first in range(0, chunks, CHUNKS):
        j = first + tl.arange(0, CHUNKS)[:, None, None]
        mask = (j < chunks) & in_map
        ptrs = partials_ptr + ((sample * chunks + j) * 2) * channels + c
        size = tl.minimum(pixels - j * chunk, chunk).to(tl.float32)
        away = tl.load(ptrs, mask=mask, other=0.0) - mean
        squares = tl.load(ptrs + channels, mask=mask, other=0.0) + size * away * away
        total += tl.where(mask, squares, 0.0)
    rstd = tl.rsqrt(_whole(total) / count + eps)
    ptrs = moments_ptr + (sample * groups + group) * 2
    tl.store(ptrs, mean, mask=group < groups)
    tl.store(ptrs + 1, rstd, mask=group < groups)


@triton.jit
def _whole(values):
    """Sums over chunks and channels, [1, G, 1] of [J, G, W]."""
    return tl.sum(tl.sum(values, 0, keep_dims=True), 2, keep_dims=True)


@triton.jit(do_not_specialize=["pixels", "chunks", "chunk"])
def _group_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, moments_ptr, y_ptr, pixels, channels, groups, chunks, chunk,
    PRECISION: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    sample, start, stop, p, c = chunk_place(pixels, chunks, chunk, PIXELS, CHANNELS)
    mean, rstd = _moments_of(moments_ptr, sample, c, channels, groups)
    scale = rstd * _param(weight_ptr, c, channels, 1.0)
    bias = _param(bias_ptr, c, channels, 0.0)
    for first in range(start, stop, PIXELS):
        mask = (first + p < stop) & (c < channels)
        offs = (sample * pixels + first + p) * channels + c
        y = (_load(x_ptr + offs, mask) - mean) * scale + bias
        tl.store(y_ptr + offs, stored(y, y_ptr.dtype.element_ty, PRECISION), mask=mask)


@triton.jit(do_not_specialize=["pixels", "chunks", "chunk"])
def _grad_sums_kernel(
    x_ptr, dy_ptr, moments_ptr, sums_ptr, pixels, channels, groups, chunks, chunk,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Sums over a chunk, by channel, of dy * normed and of dy."""
    sample, start, stop, p, c = chunk_place(pixels, chunks, chunk, PIXELS, CHANNELS)
    mean, rstd = _moments_of(moments_ptr, sample, c, channels, groups)
    products = tl.zeros((PIXELS, CHANNELS), tl.float32)
    total = tl.zeros((PIXELS, CHANNELS), tl.float32)
    for first in range(start, stop, PIXELS):
        mask = (first + p < stop) & (c < channels)
        offs = (sample * pixels + first + p) * channels + c
        dy = _load(dy_ptr + offs, mask)
        products += dy * ((_load(x_ptr + offs, mask) - mean) * rstd)
        total += dy
    ptrs = sums_ptr + tl.program_id(0).to(tl.int64) * 2 * channels + c
    tl.store(ptrs, tl.sum(products, 0, keep_dims=True), mask=c < channels)
    tl.store(ptrs + channels, tl.sum(total, 0, keep_dims=True), mask=c < channels)


@triton.jit(do_not_specialize=["pixels", "chunks"])
def _group_slopes_kernel(
    sums_ptr, weight_ptr, slopes_ptr, pixels, channels, groups, chunks,
    CHUNKS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Means over a group of dy * weight * normed and of dy * weight, from the sums of chunks."""
    sample, group, c, in_map, count = _place(pixels, channels, groups, GROUPS, WIDTH)
    products = tl.zeros((CHUNKS, GROUPS, WIDTH), tl.float32)
    total = tl.zeros((CHUNKS, GROUPS, WIDTH), tl.float32)
    for first in range(0, chunks, CHUNKS):
        j = first + tl.arange(0, CHUNKS)[:, None, None]
        mask = (j < chunks) & in_map
        ptrs = sums_ptr + ((sample * chunks + j) * 2) * channels + c
        products += tl.load(ptrs, mask=mask, other=0.0)
        total += tl.load(ptrs + channels, mask=mask, other=0.0)
    weight = _param(weight_ptr, c, channels, 1.0)
    ptrs = slopes_ptr + (sample * groups + group) * 2
    tl.store(ptrs, _whole(products * weight) / count, mask=group < groups)
    tl.store(ptrs + 1, _whole(total * weight) / count, mask=group < groups)


@triton.jit(do_not_specialize=["pixels", "chunks", "chunk"])
def _group_norm_grad_kernel(
    x_ptr, dy_ptr, weight_ptr, moments_ptr, slopes_ptr, dx_ptr,
    pixels, channels, groups, chunks, chunk,
    PRECISION: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    sample, start, stop, p, c = chunk_place(pixels, chunks, chunk, PIXELS, CHANNELS)
    mean, rstd = _moments_of(moments_ptr, sample, c, channels, groups)
    slope, upper_mean = _moments_of(slopes_ptr, sample, c, channels, groups)
    weight = _param(weight_ptr, c, channels, 1.0)
    for first in range(start, stop, PIXELS):
        mask = (first + p < stop) & (c < channels)
        offs = (sample * pixels + first + p) * channels + c
        normed = (_load(x_ptr + offs, mask) - mean) * rstd
        dx = (_load(dy_ptr + offs, mask) * weight - upper_mean - normed * slope) * rstd
        tl.store(dx_ptr + offs, stored(dx, dx_ptr.dtype.element_ty, PRECISION), mask=mask)


def _merging(channels: int, groups: int) -> tuple[tuple[int], dict[str, int]]:
    """Programs that merge the chunks of a sample, and the block of a program."""
    width = triton.next_power_of_2(channels // groups)
    block_g = min(triton.next_power_of_2(groups), max(1, GROUPED // width))
    block = {"CHUNKS": max(1, MERGED // (block_g * width)), "GROUPS": block_g, "WIDTH": width}
    return (triton.cdiv(groups, block_g),), block


def group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, y: Tensor, moments: Tensor,
    partials: Tensor, *, groups: int, eps: float, precision: str = "ieee",
) -> None:  # fmt: skip
    """y = x [N, P, C] normalized over groups of channels, times weight, plus bias, float32 [C].

    moments, float32 [N, groups, 2], get the means and inverse deviations. partials, float32 [N,
    `num_chunks`(P, C), 2, C], are a workspace.
    """
    if x.numel() == 0:
        return
    samples, pixels, channels = x.shape
    chunk, chunks = chunk_of(pixels, channels), num_chunks(pixels, channels)
    launch_chunks(_chunk_moments_kernel, x, (x, partials))
    programs, block = _merging(channels, groups)
    _group_moments_kernel[(samples, *programs)](
        partials, moments, pixels, channels, groups, chunks, chunk, eps, **block, num_warps=4
    )
    operands = (x, weight, bias, moments, y)
    launch_chunks(_group_norm_kernel, x, operands, groups, PRECISION=precision)


def group_norm_grad(
    x: Tensor, dy: Tensor, weight: Tensor | None, moments: Tensor, dx: Tensor | None, sums: Tensor,
    slopes: Tensor | None, *, groups: int, precision: str = "ieee",
) -> None:  # fmt: skip
    """The gradient dx of `group_norm`, and sums by chunk of the gradients of weight and bias.

    sums are float32 [N, `num_chunks`(P, C), 2, C], the weight's first. dx may be dy or None.
    slopes, float32 [N, groups, 2], are a workspace for dx.
    """
    if x.numel() == 0:
        return
    samples, pixels, channels = x.shape
    launch_chunks(_grad_sums_kernel, x, (x, dy, moments, sums), groups)
    if dx is None:
        return
    programs, block = _merging(channels, groups)
    _group_slopes_kernel[(samples, *programs)](
        sums, weight, slopes, pixels, channels, groups, num_chunks(pixels, channels),
        **block, num_warps=4,
    )  # fmt: skip
    operands = (x, dy, weight, moments, slopes, dx)
    launch_chunks(_group_norm_grad_kernel, x, operands, groups, PRECISION=precision)


def group_norm_reference(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, y: Tensor, moments: Tensor,
    partials: Tensor, *, groups: int, eps: float, precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `group_norm` in float64, without partials."""
    grouped = x.double().unflatten(2, (groups, -1))
    mean = grouped.mean((1, 3))
    variance = (grouped - mean[:, None, :, None]).square().mean((1, 3))
    moments.copy_(torch.stack([mean, (variance + eps).rsqrt()], -1))
    wide = [None if param is None else param.double() for param in (weight, bias)]
    if x.numel():
        # functional.group_norm refuses one value a group of one sample
        exact = torch.group_norm(x.double().mT, groups, *wide, eps).mT
        y.copy_(stored_reference(exact.float(), y.dtype, precision))


def group_norm_grad_reference(
    x: Tensor, dy: Tensor, weight: Tensor | None, moments: Tensor, dx: Tensor | None, sums: Tensor,
    slopes: Tensor | None, *, groups: int, precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `group_norm_grad` in float64."""
    if x.numel() == 0:
        return
    upper = dy.double().unflatten(2, (groups, -1))  # [N, P, G, C/G]
    mean, rstd = moments.double()[:, None, :, None].unbind(-1)
    normed = (x.double().unflatten(2, (groups, -1)) - mean) * rstd
    chunk = chunk_of(*x.shape[1:])
    for kind, values in enumerate((upper * normed, upper)):
        for number, piece in enumerate(values.flatten(2).split(chunk, 1)):
            sums[:, number, kind] = piece.sum(1)
    if dx is None or slopes is None:
        return
    upper = upper if weight is None else upper * weight.double().view(groups, -1)
    slope, upper_mean = (upper * normed).mean((1, 3)), upper.mean((1, 3))
    slopes.copy_(torch.stack([slope, upper_mean], -1))
    exact = (upper - upper_mean[:, None, :, None] - normed * slope[:, None, :, None]) * rstd
    dx.copy_(stored_reference(exact.flatten(2).float(), dx.dtype, precision))

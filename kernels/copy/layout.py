"""Copies between the caller's tensors [N, C, H, W] and maps [N, H, W, C], casts, sums.

With `precision` "tf32" float32 outputs are rounded to TF32.
"""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from ..language.elementwise import block_channels, block_ptrs, launch, launch_maps
from ..language.rounding import stored, stored_reference

NUM_WARPS: Final = 8
TILE: Final = 4096  # elements of a program
TILE_CHANNELS: Final = 64  # channels of a program, at most


@triton.jit(do_not_specialize=["numel"])
def _cast_kernel(src_ptr, dst_ptr, numel, PRECISION: tl.constexpr, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offs = tl.arange(0, BLOCK)
    src_ptr += start
    dst_ptr += start
    if start + BLOCK <= numel:
        values = tl.load(src_ptr + offs)
        tl.store(dst_ptr + offs, stored(values, dst_ptr.dtype.element_ty, PRECISION))
    else:
        mask = offs < numel - start
        values = tl.load(src_ptr + offs, mask=mask, other=0.0)
        tl.store(dst_ptr + offs, stored(values, dst_ptr.dtype.element_ty, PRECISION), mask=mask)


@triton.jit
def _sum(a, b, PRECISION: tl.constexpr):
    return stored(a.to(tl.float32) + b.to(tl.float32), a.dtype, PRECISION)


@triton.jit(do_not_specialize=["numel"])
def _add_kernel(
    a_ptr, b_ptr, out_ptr, numel, PRECISION: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offs = tl.arange(0, BLOCK)
    a_ptr += start
    b_ptr += start
    out_ptr += start
    if start + BLOCK <= numel:
        total = _sum(tl.load(a_ptr + offs), tl.load(b_ptr + offs), PRECISION)
        tl.store(out_ptr + offs, total)
    else:
        mask = offs < numel - start
        a = tl.load(a_ptr + offs, mask=mask, other=0.0)
        b = tl.load(b_ptr + offs, mask=mask, other=0.0)
        tl.store(out_ptr + offs, _sum(a, b, PRECISION), mask=mask)


@triton.jit(do_not_specialize=["pixels", "lanes", "a_lanes", "b_lanes", "out_lanes"])
def _add_ranges_kernel(
    a_ptr, b_ptr, out_ptr, pixels, lanes, a_lanes, b_lanes, out_lanes, PRECISION: tl.constexpr,
    LANE: tl.constexpr, BLOCK_PIXELS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    c, mask = block_channels(pixels, lanes, LANE, BLOCK_PIXELS, BLOCK_C)
    a = tl.load(block_ptrs(a_ptr, c, a_lanes, LANE, BLOCK_PIXELS), mask=mask, other=0.0)
    b = tl.load(block_ptrs(b_ptr, c, b_lanes, LANE, BLOCK_PIXELS), mask=mask, other=0.0)
    out_ptrs = block_ptrs(out_ptr, c, out_lanes, LANE, BLOCK_PIXELS)
    tl.store(out_ptrs, _sum(a, b, PRECISION), mask=mask)


@triton.jit(do_not_specialize=["height"])
def _permute_kernel(
    src_ptr,
    dst_ptr,
    height,
    width,
    channels,
    src_stride_n,
    src_stride_h,
    src_stride_w,
    src_stride_c,
    dst_stride_n,
    dst_stride_h,
    dst_stride_w,
    dst_stride_c,
    PRECISION: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    tiles = tl.cdiv(width, BLOCK_W)
    row = tl.program_id(0).to(tl.int64) // tiles
    n, h = row // height, row % height
    w = tl.program_id(0).to(tl.int64) % tiles * BLOCK_W
    c = tl.program_id(1).to(tl.int64) * BLOCK_C
    src_ptr += n * src_stride_n + h * src_stride_h + w * src_stride_w + c * src_stride_c
    dst_ptr += n * dst_stride_n + h * dst_stride_h + w * dst_stride_w + c * dst_stride_c
    offs_w = tl.arange(0, BLOCK_W)[:, None]  # [BLOCK_W, 1]
    offs_c = tl.arange(0, BLOCK_C)[None, :]  # [1, BLOCK_C]
    mask = (offs_w < width - w) & (offs_c < channels - c)
    src_offs = offs_w * src_stride_w + offs_c * src_stride_c
    dst_offs = offs_w * dst_stride_w + offs_c * dst_stride_c
    tile = tl.load(src_ptr + src_offs, mask=mask, other=0.0)  # [BLOCK_W, BLOCK_C]
    tl.store(dst_ptr + dst_offs, stored(tile, dst_ptr.dtype.element_ty, PRECISION), mask=mask)


def _as_nhwc(nchw: Tensor) -> Tensor:
    """View of a caller's tensor as [N, H, W, C]. A vector [N] or a matrix [N, F] is one row."""
    if nchw.dim() <= 2:
        return nchw[None, None] if nchw.dim() == 2 else nchw[None, None, :, None]
    return nchw.movedim(1, -1) if nchw.dim() >= 4 else nchw.transpose(1, 2)[:, None]


def _as_maps(stored_maps: Tensor) -> Tensor:
    """View of stored maps as [N, H, W, C]. A sample of [N, L, C] is one row of L pixels."""
    if stored_maps.dim() >= 4:
        return stored_maps
    return stored_maps[:, None] if stored_maps.dim() == 3 else _as_nhwc(stored_maps)


def _with_merged_rows(src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
    """Views of both [N, H, W, C] as [N, 1, H * W, C] where neither has gaps between its rows."""
    width = src.shape[2]
    if any(t.stride(1) != width * t.stride(2) for t in (src, dst)):
        return src, dst
    return src.flatten(1, 2)[:, None], dst.flatten(1, 2)[:, None]


def permute(src: Tensor, dst: Tensor, precision: str) -> None:
    """dst = src, both [N, H, W, C] or of more dimensions, of any strides."""
    if src.is_contiguous() and dst.is_contiguous():
        cast(src, dst, precision=precision)
        return
    if src.numel() == 0:
        return
    if src.dim() > 4:
        _permute_many(src, dst, precision)
        return
    src, dst = _with_merged_rows(src, dst)
    samples, height, width, channels = src.shape
    block_c = min(triton.next_power_of_2(channels), TILE_CHANNELS)
    block_w = min(triton.next_power_of_2(width), TILE // block_c)
    tiles = samples * height * triton.cdiv(width, block_w)
    grid = (tiles, triton.cdiv(channels, block_c))
    _permute_kernel[grid](
        src,
        dst,
        height,
        width,
        channels,
        *src.stride(),
        *dst.stride(),
        PRECISION=precision,
        BLOCK_W=block_w,
        BLOCK_C=block_c,
        num_warps=NUM_WARPS,
    )


def _permute_many(src: Tensor, dst: Tensor, precision: str) -> None:
    """`permute` of more than four dimensions. Dimensions that are adjacent in both are merged."""
    for dim in range(src.dim() - 2, -1, -1):
        size = src.shape[dim + 1]
        if all(t.stride(dim) == size * t.stride(dim + 1) for t in (src, dst)):
            src, dst = src.flatten(dim, dim + 1), dst.flatten(dim, dim + 1)
    if src.dim() > 4:
        for part, into in zip(src, dst, strict=True):
            _permute_many(part, into, precision)
        return
    missing = (1,) * (4 - src.dim())
    permute(src.reshape(*missing, *src.shape), dst.view(*missing, *dst.shape), precision)


def stage(x: Tensor, y: Tensor, *, precision: str = "ieee") -> None:
    """y [N, H, W, C] = x [N, C, H, W], floats of any strides.

    Also takes x [N, C, L] to y [N, L, C], x [N] or [N, F] to y of the same shape, and x [N, C, ...]
    of more dimensions.
    """
    permute(_as_nhwc(x), _as_maps(y), precision)


def unstage(y: Tensor, x: Tensor) -> None:
    """x = y: the inverse of `stage`, for the same shapes. x holds floats of any strides."""
    permute(_as_maps(y), _as_nhwc(x), "ieee")


def cast(src: Tensor, dst: Tensor, *, precision: str = "ieee") -> None:
    """dst = src rounded to dst's dtype. Both are contiguous, with the same number of elements."""
    launch(_cast_kernel, src, dst, PRECISION=precision)


def add(a: Tensor, b: Tensor, out: Tensor, *, precision: str = "ieee") -> None:
    """out = a + b, summed in float32 and rounded once. Shapes and dtypes are the same.

    Each may be a channel range. out may be a or b.
    """
    launch_maps(_add_kernel, _add_ranges_kernel, a, b, out, PRECISION=precision)


def stage_reference(x: Tensor, y: Tensor, *, precision: str = "ieee") -> None:
    """Computes `stage` in torch."""
    rounded = stored_reference(x, y.dtype, precision)
    y.copy_(rounded.view_as(y) if x.dim() <= 2 else rounded.movedim(1, -1))


def unstage_reference(y: Tensor, x: Tensor) -> None:
    """Computes `unstage` in torch."""
    x.copy_(y.view_as(x) if x.dim() <= 2 else y.movedim(-1, 1))


def cast_reference(src: Tensor, dst: Tensor, *, precision: str = "ieee") -> None:
    """Computes `cast` in torch."""
    dst.view(-1).copy_(stored_reference(src, dst.dtype, precision).view(-1))


def add_reference(a: Tensor, b: Tensor, out: Tensor, *, precision: str = "ieee") -> None:
    """Computes `add` in torch."""
    out.copy_(stored_reference(a.float() + b.float(), out.dtype, precision))

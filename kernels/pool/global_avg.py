"""Averages of whole NHWC maps, one a sample and channel, and their gradients.

A program averages a block of channels of one sample. The order of its sums follows from the numbers
of pixels and channels alone. Neither the batch nor the pitches of the maps change a bit.
"""

from math import gcd
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from ..language.channel_ranges import pitch_of
from ..language.map_tiles import nchw
from ..language.rounding import stored, stored_reference
from ..norm.normalized_again import (
    Normalized,
    normalized_again,
    normalized_again_reference,
    normalizer_of,
    settings_of_normalizer,
)

TILE: Final = 8192  # elements of a tile, at most
WARP_TILE: Final = 1024  # elements of a warp: four loads of 16 bytes a thread in bfloat16
WIDTHS: Final = (64, 32, 16)  # channels of a tile: 64 bfloat16 channels are one 128-byte line
LEAST_WIDTHS: Final = (64, 32)  # where rows do not start at 32-byte sectors
MANY_PIXELS: Final = 1024  # pixels from which tiles are narrow: more programs share a sample


@triton.jit
def _place(
    channels, tiles_c, ALIGN: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr
) -> tl.tuple:
    """A program's tile of pixels (int64), its pixels [P, 1], channels [1, C] and their mask."""
    pid = tl.program_id(0)
    c = pid % tiles_c * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    tile = (pid // tiles_c).to(tl.int64)
    return tile, tl.arange(0, BLOCK_P)[:, None], c, c < channels // ALIGN * ALIGN


@triton.jit(do_not_specialize=["pixels", "divisor", "tiles_c"])
def _sums_kernel(
    x_ptr, y_ptr, source, pixels, divisor, channels, x_pitch, y_pitch, tiles_c, coefficient,
    FUNCTION: tl.constexpr, PRECISION: tl.constexpr, ALIGN: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """With a `source` the averaged map is x, normalized again."""
    n, p, c, mask_c = _place(channels, tiles_c, ALIGN, BLOCK_P, BLOCK_C)
    x_pitch = x_pitch // ALIGN * ALIGN
    if source is not None:
        at = normalizer_of(source, c, mask_c, channels)
    total = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for first in tl.range(0, pixels, BLOCK_P, num_stages=STAGES):
        mask = (p < pixels - first) & mask_c
        ptrs = x_ptr + (n * pixels + first) * x_pitch + (p * x_pitch + c)
        x = tl.load(ptrs, mask=mask, other=0.0)
        if source is not None:
            x = normalized_again(x, at, coefficient, FUNCTION)
            total += tl.where(mask, x.to(tl.float32), 0.0)
        else:
            total += x.to(tl.float32)
    # Pairs of rows add up. A sum of more rows would follow the layout of threads.
    for level in tl.static_range(1, 14):
        if BLOCK_P >> level > 0:
            total = tl.sum(tl.reshape(total, (2, BLOCK_P >> level, BLOCK_C)), 0)
    y = total / divisor.to(tl.float32)  # [1, BLOCK_C]
    tl.store(y_ptr + n * y_pitch + c, stored(y, y_ptr.dtype.element_ty, PRECISION), mask=mask_c)


@triton.jit(do_not_specialize=["pixels", "tiles_c", "tiles_p"])
def _avg_grad_kernel(
    dy_ptr, dx_ptr, pixels, channels, dy_pitch, dx_pitch, tiles_c, tiles_p,
    PRECISION: tl.constexpr, ALIGN: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    tile, p, c, mask_c = _place(channels, tiles_c, ALIGN, BLOCK_P, BLOCK_C)
    n, first = tile // tiles_p, tile % tiles_p * BLOCK_P
    dy = tl.load(dy_ptr + n * dy_pitch + c, mask=mask_c, other=0.0).to(tl.float32)
    dx = stored(dy / pixels.to(tl.float32), dx_ptr.dtype.element_ty, PRECISION)
    dx_pitch = dx_pitch // ALIGN * ALIGN
    ptrs = dx_ptr + (n * pixels + first) * dx_pitch + (p * dx_pitch + c)
    mask = (p < pixels - first) & mask_c
    tl.store(ptrs, tl.broadcast_to(dx, (BLOCK_P, BLOCK_C)), mask=mask)


def global_avg(x: Tensor, y: Tensor, precision: str) -> None:
    """y [N, 1, 1, C] = the mean of each channel of x [N, H, W, C]."""
    sum_pixels(x, y, x.shape[1] * x.shape[2], precision)


def normalized_avg(
    x: Tensor, y: Tensor, *, made_by: Normalized, precision: str = "ieee"
) -> None:  # fmt: skip
    """y [N, 1, 1, C] = the mean of each channel of the map that is made of x [N, H, W, C].

    The bits are those of `adaptive_avg_pool2d` of the stored map.
    """
    sum_pixels(x, y, x.shape[1] * x.shape[2], precision, made_by)


def sum_pixels(
    x: Tensor, y: Tensor, divisor: int, precision: str, made_by: Normalized | None = None
) -> None:
    """y [N, 1, 1, C] = the sum of each channel of x [N, H, W, C] over the divisor.

    x may be what the summed map is `made_by`.
    """
    samples, pixels, channels, tile = _tile(x, y)
    if samples == 0:
        return
    tiles_c = triton.cdiv(channels, tile["BLOCK_C"])
    # Of float32 maps the product that ends an activation is rounded before it is added.
    unrounded = made_by is not None and x.dtype == torch.float32
    apart = {"enable_fp_fusion": False} if unrounded else {}
    _sums_kernel[(samples * tiles_c,)](
        x, y, pixels=pixels, divisor=divisor, channels=channels, x_pitch=pitch_of(x),
        y_pitch=pitch_of(y), tiles_c=tiles_c, **settings_of_normalizer(made_by),
        PRECISION=precision,
        STAGES=3 if tile["ALIGN"] >= 8 else 1, **tile, **apart,
    )  # fmt: skip


def global_avg_grad(dy: Tensor, dx: Tensor, precision: str) -> None:
    """The gradient dx [N, H, W, C] of `global_avg` from dy [N, 1, 1, C]."""
    samples, pixels, channels, tile = _tile(dx, dy)
    if samples == 0:
        return
    tiles_c = triton.cdiv(channels, tile["BLOCK_C"])
    tiles_p = triton.cdiv(pixels, tile["BLOCK_P"])
    _avg_grad_kernel[(samples * tiles_p * tiles_c,)](
        dy, dx, pixels, channels, pitch_of(dy), pitch_of(dx), tiles_c, tiles_p,
        PRECISION=precision, **tile,
    )  # fmt: skip


def _tile(x: Tensor, y: Tensor) -> tuple[int, int, int, dict[str, int]]:
    """Samples, pixels and channels of x, and the tile of a program with its warps."""
    samples, height, width, channels = x.shape
    pixels = height * width
    widths = LEAST_WIDTHS if channels % 16 else WIDTHS
    if pixels >= MANY_PIXELS:
        widths = widths[::-1]
    block_c = min(widths, key=lambda block: triton.cdiv(channels, block) * block)
    block_c = min(triton.next_power_of_2(channels), block_c)
    block_p = min(triton.next_power_of_2(pixels), TILE // block_c)
    align = gcd(16, channels, pitch_of(x), pitch_of(y))
    tile = {"ALIGN": align, "BLOCK_P": block_p, "BLOCK_C": block_c}
    return samples, pixels, channels, tile | {"num_warps": max(block_p * block_c // WARP_TILE, 1)}


def normalized_avg_reference(
    x: Tensor, y: Tensor, *, made_by: Normalized, precision: str = "ieee"
) -> None:  # fmt: skip
    """Computes `normalized_avg` in torch."""
    maps = nchw(normalized_again_reference(x, made_by))
    mean = functional.adaptive_avg_pool2d(maps, 1)
    y.copy_(stored_reference(mean.permute(0, 2, 3, 1), y.dtype, precision))

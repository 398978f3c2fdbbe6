"""Convolution weights cast and reordered for the kernels, with channels innermost.

With `precision` "tf32" float32 copies are rounded to TF32. Where groups are narrow, tensor cores
take bands of input channels (bands.py), of which those of other groups get zeros.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.rounding import stored, stored_reference
from .bands import band_start, filter_of, first_channel
from .tiles import Filter

BLOCK: Final = 1024
TILE: Final = 32  # rows and columns of a tile, which is transposed where rows lie together


# Sizes that only divide indices, of which no address is a multiple.
DIVISORS: Final = ("size_o", "size_r", "size_s", "block", "last_band")


@triton.jit(do_not_specialize=DIVISORS)
def pack_kernel(
    weight_ptr, packed_ptr, numel, size_o, size_r, size_s, size_i,
    stride_g, stride_o, stride_r, stride_s, stride_i, band, block, last_band,
    PRECISION: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """packed[g * size_o + o, r, s, j] = the weight at (g, o, r, s, i). Strides may be negative.

    j counts from the first channel of the band that the block of g * size_o + o reads. Other groups
    than g have zeros. Indices have 64 bits if WIDE: divisions by sizes that are no powers of two
    then take longer than all else.
    """
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    if WIDE:
        offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    index_s = offs // band
    index_r = index_s // size_s
    index_o = index_r // size_r
    first = band_start(index_o // block * block, size_i, size_o, last_band)
    group = index_o // size_o
    i = first + offs % band - group * size_i
    source = i * stride_i + (index_s % size_s) * stride_s + (index_r % size_r) * stride_r
    source += (index_o % size_o) * stride_o + group * stride_g
    mask = offs < numel
    own = mask & (i >= 0) & (i < size_i)
    value = tl.load(weight_ptr + source, mask=own, other=0.0).to(tl.float32)
    tl.store(packed_ptr + offs, stored(value, packed_ptr.dtype.element_ty, PRECISION), mask=mask)


@triton.jit(do_not_specialize=["size_o"])
def pack_matrix_kernel(
    weight_ptr, packed_ptr, size_o, size_i, stride_o, stride_i,
    PRECISION: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """packed[o, i] = the weight at (o, i), for a tile of filters of one tap."""
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (o < size_o) & (i < size_i)
    value = tl.load(weight_ptr + o * stride_o + i * stride_i, mask=mask, other=0.0).to(tl.float32)
    value = stored(value, packed_ptr.dtype.element_ty, PRECISION)
    tl.store(packed_ptr + o * size_i + i, value, mask=mask)


def pack_weight(weight: Tensor, packed: Tensor, *, groups: int, precision: str = "ieee") -> None:
    """packed for `conv2d` = weight [K, C/g, R, S], floats of any strides.

    packed is [K, R, S, C/g], or of bands as `packed_shape` says.
    """
    out_channels, in_channels, size_r, size_s = weight.shape
    stride_k, stride_c, stride_r, stride_s = weight.stride()
    size_o = out_channels // groups
    _launch(
        weight, packed, (size_o, size_r, size_s, in_channels),
        (size_o * stride_k, stride_k, stride_r, stride_s, stride_c), groups, precision,
    )  # fmt: skip


def pack_weight_grad_input(
    weight: Tensor, packed: Tensor, *, groups: int, precision: str = "ieee"
) -> None:
    """packed for `conv2d_grad_input` = weight [K, C/g, R, S], filters flipped.

    packed is [C, R, S, K/g], or of bands as `packed_shape_grad_input` says.
    """
    out_channels, in_channels, size_r, size_s = weight.shape
    stride_k, stride_c, stride_r, stride_s = weight.stride()
    size_i = out_channels // groups
    last_taps = weight[:, :, size_r - 1 :, size_s - 1 :]
    _launch(
        last_taps, packed, (in_channels, size_r, size_s, size_i),
        (size_i * stride_k, stride_c, -stride_r, -stride_s, stride_k), groups, precision,
    )  # fmt: skip


def pack_weight_reference(
    weight: Tensor, packed: Tensor, *, groups: int, precision: str = "ieee"
) -> None:
    """Computes `pack_weight` in torch."""
    _spread(stored_reference(weight, packed.dtype, precision).permute(0, 2, 3, 1), packed, groups)


def pack_weight_grad_input_reference(
    weight: Tensor, packed: Tensor, *, groups: int, precision: str = "ieee"
) -> None:
    """Computes `pack_weight_grad_input` in torch."""
    rounded = stored_reference(weight, packed.dtype, precision)
    grouped = rounded.unflatten(0, (groups, -1)).flip(3, 4)  # [g, K/g, C/g, R, S]
    _spread(grouped.permute(0, 2, 3, 4, 1).flatten(0, 1), packed, groups)


def of_groups(packed: Tensor, in_channels: int, groups: int) -> Tensor:
    """The part [K, R, S, C/g] of packed [K, R, S, band] that joins channels of one group."""
    if packed.shape[3] == in_channels // groups:
        return packed
    return packed.gather(3, _places(packed, in_channels, groups))


def _spread(own: Tensor, packed: Tensor, groups: int) -> None:
    """Write what `of_groups` reads. The rest becomes zero."""
    if packed.shape == own.shape:
        packed.copy_(own)
    else:
        places = _places(packed, own.shape[3] * groups, groups)
        packed.zero_().scatter_(3, places, own.contiguous())


def _places(packed: Tensor, in_channels: int, groups: int) -> Tensor:
    """The places [K, R, S, C/g] in their bands of the input channels of each output's group."""
    out_channels, size_r, size_s, _ = packed.shape
    taps = _filter_of(packed, in_channels, groups)
    width = in_channels // groups
    blocks, members = (
        torch.arange(out_channels, device=packed.device) // each
        for each in (taps.out_channels, out_channels // groups)
    )
    firsts = [first_channel(taps, block) for block in range(taps.blocks)]
    starts = members * width - torch.tensor(firsts, device=packed.device)[blocks]
    places = starts[:, None] + torch.arange(width, device=packed.device)  # [K, C/g]
    return places[:, None, None].expand(-1, size_r, size_s, -1)


def _filter_of(packed: Tensor, in_channels: int, groups: int) -> Filter:
    out_channels, size_r, size_s, band = packed.shape
    ones = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
    return filter_of((in_channels, out_channels), groups, band, size=(size_r, size_s), **ones)


def _launch(
    source: Tensor, packed: Tensor, sizes: tuple[int, ...], strides: tuple[int, ...],
    groups: int, precision: str,
) -> None:  # fmt: skip
    wide = max(packed.numel(), source.numel()) >= 1 << 31
    (size_o, size_r, size_s, size_i), (_, stride_o, *_, stride_i) = sizes, strides
    is_matrix = size_r == size_s == groups == 1 and packed.numel() == size_o * size_i
    if is_matrix and not wide and min(size_o, size_i) >= TILE // 2:
        grid = (triton.cdiv(size_o, TILE), triton.cdiv(size_i, TILE))
        pack_matrix_kernel[grid](
            source, packed, size_o, size_i, stride_o, stride_i, PRECISION=precision, BLOCK=TILE
        )
        return
    taps = _filter_of(packed, sizes[3] * groups, groups)
    pack_kernel[(triton.cdiv(packed.numel(), BLOCK),)](
        source, packed, packed.numel(), *sizes, *strides,
        taps.in_channels, taps.out_channels, taps.last_band,
        PRECISION=precision, WIDE=wide, BLOCK=BLOCK,
    )  # fmt: skip

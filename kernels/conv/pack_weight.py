"""Convolution weights cast and reordered for the kernels, with channels innermost.

With `precision` "tf32" float32 copies are rounded to TF32.
"""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from ..language.rounding import stored, stored_reference

BLOCK: Final = 1024


@triton.jit
def pack_kernel(
    weight_ptr, packed_ptr, numel, size_o, size_r, size_s, size_i,
    stride_g, stride_o, stride_r, stride_s, stride_i,
    PRECISION: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """packed[g * size_o + o, r, s, i] = the weight at (g, o, r, s, i). Strides may be negative."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    mask = offs < numel
    index_s = offs // size_i
    index_r = index_s // size_s
    index_o = index_r // size_r
    source = (offs % size_i) * stride_i + (index_s % size_s) * stride_s
    source += (index_r % size_r) * stride_r
    source += (index_o % size_o) * stride_o + (index_o // size_o) * stride_g
    value = tl.load(weight_ptr + source, mask=mask, other=0.0).to(tl.float32)
    tl.store(packed_ptr + offs, stored(value, packed_ptr.dtype.element_ty, PRECISION), mask=mask)


def pack_weight(weight: Tensor, packed: Tensor, *, groups: int, precision: str = "ieee") -> None:
    """packed [K, R, S, C/g] for `conv2d` = weight [K, C/g, R, S], floats of any strides."""
    out_channels, in_channels, size_r, size_s = weight.shape
    stride_k, stride_c, stride_r, stride_s = weight.stride()
    size_o = out_channels // groups
    _launch(
        weight, packed, (size_o, size_r, size_s, in_channels),
        (size_o * stride_k, stride_k, stride_r, stride_s, stride_c), precision,
    )  # fmt: skip


def pack_weight_grad_input(
    weight: Tensor, packed: Tensor, *, groups: int, precision: str = "ieee"
) -> None:
    """packed [C, R, S, K/g] for `conv2d_grad_input` = weight [K, C/g, R, S], filters flipped."""
    out_channels, in_channels, size_r, size_s = weight.shape
    stride_k, stride_c, stride_r, stride_s = weight.stride()
    size_i = out_channels // groups
    last_taps = weight[:, :, size_r - 1 :, size_s - 1 :]
    _launch(
        last_taps, packed, (in_channels, size_r, size_s, size_i),
        (size_i * stride_k, stride_c, -stride_r, -stride_s, stride_k), precision,
    )  # fmt: skip


def pack_weight_reference(
    weight: Tensor, packed: Tensor, *, groups: int, precision: str = "ieee"
) -> None:
    """Computes `pack_weight` in torch."""
    packed.copy_(stored_reference(weight, packed.dtype, precision).permute(0, 2, 3, 1))


def pack_weight_grad_input_reference(
    weight: Tensor, packed: Tensor, *, groups: int, precision: str = "ieee"
) -> None:
    """Computes `pack_weight_grad_input` in torch."""
    rounded = stored_reference(weight, packed.dtype, precision)
    grouped = rounded.unflatten(0, (groups, -1)).flip(3, 4)  # [g, K/g, C/g, R, S]
    packed.copy_(grouped.permute(0, 2, 3, 4, 1).reshape(packed.shape))


def _launch(
    source: Tensor, packed: Tensor, sizes: tuple[int, ...], strides: tuple[int, ...],
    precision: str,
) -> None:  # fmt: skip
    pack_kernel[(triton.cdiv(packed.numel(), BLOCK),)](
        source, packed, packed.numel(), *sizes, *strides, PRECISION=precision, BLOCK=BLOCK
    )

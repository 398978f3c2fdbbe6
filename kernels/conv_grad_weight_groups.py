"""Gradients of a convolution's weight and bias in partial sums over groups of samples.

The kernels are in conv_grad_weight_pointer.py, for every shape, and in conv_grad_weight_tma.py,
for maps whose channels suit tensor descriptors. `precision` is "ieee" or "tf32", for float32 maps.
"""

from math import gcd
from typing import Final

import torch
import triton
from torch import Tensor
from torch.nn.functional import pad as torch_pad
from torch.nn.grad import conv2d_weight
from triton.tools.tensor_descriptor import TensorDescriptor

from .conv import rounding
from .conv_grad_weight_pointer import grad_weight_kernel
from .conv_grad_weight_tiles import (
    SHARED_BY,
    grad_weight_pointer_tile,
    grad_weight_programs,
    grad_weight_tile,
)
from .conv_grad_weight_tma import grad_weight_flat_kernel, grad_weight_samples_kernel
from .conv_tiles import FEW_CHANNELS, Filter, Pair, block_of, suits_descriptors
from .reduce import sum_rows, sum_rows_reference

SMALL_MAP: Final = 16 * 16  # output pixels up to which a weight gradient runs over samples


def conv2d_grad_weight_groups(
    x: Tensor, dy: Tensor, partials: Tensor, *, group: int, splits: int,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, precision: str,
) -> None:  # fmt: skip
    """Partial weight gradients, float32 [ceil(N/group), splits, K, R, S, C/g], each from zero.

    Partial (g, j) sums the j-th slice of the output pixels of samples [g * group, (g + 1) * group).
    Slices depend on the sizes of a map, `group` and `splits` alone; some may be empty.
    """
    if partials.numel() == 0:
        return
    _, _, out_channels, size_r, size_s, in_channels = partials.shape
    taps = Filter(
        (size_r, size_s), stride, padding, dilation, groups, in_channels, out_channels // groups
    )
    if not suits_descriptors(x, dy, taps, precision):
        _launch_grad_weight(x, dy, partials, taps, group, splits, precision)
    elif group % FEW_CHANNELS == 0 and dy.shape[1] * dy.shape[2] <= SMALL_MAP:
        _launch_grad_weight_samples(x, dy, partials, taps, group, splits, precision)
    elif _is_flat(x, dy, taps):
        _launch_grad_weight_flat(x, dy, partials, taps, group, splits, precision)
    else:
        _launch_grad_weight(x, dy, partials, taps, group, splits, precision)


def conv2d_grad_bias_groups(dy: Tensor, partials: Tensor, *, group: int) -> None:
    """Sums of dy [N, P, Q, K] over groups of samples and their pixels, as `sum_rows` makes them."""
    sum_rows(dy.view(-1, dy.shape[3]), partials, group=group * dy.shape[1] * dy.shape[2])


def grad_weight_tiles(
    out_channels: int, in_channels: int, size_r: int, size_s: int, groups: int,
    dtype: torch.dtype, precision: str,
) -> int:  # fmt: skip
    """Multiprocessors that one partial sum fills; in_channels of one group."""
    taps = Filter(
        (size_r, size_s), (1, 1), (0, 0), (1, 1), groups, in_channels, out_channels // groups
    )
    shared_by = SHARED_BY if grad_weight_tile(taps, dtype, precision).num_warps == 2 else 1
    return triton.cdiv(grad_weight_programs(taps, dtype, precision), shared_by)


# Which kernel


def _is_flat(x: Tensor, dy: Tensor, taps: Filter) -> bool:
    """Whether a tap is one offset in the flat map: stride 1, sides kept, moving under a row."""
    kept = x.shape[1:3] == dy.shape[1:3] and taps.stride == (1, 1)
    return kept and taps.dilation[1] * (taps.size[1] - 1) // 2 < x.shape[2]


# Launches


def _launch_grad_weight(
    x: Tensor, dy: Tensor, partials: Tensor, taps: Filter, group: int, splits: int, precision: str
) -> None:
    tile = grad_weight_pointer_tile(taps, x.dtype, precision)
    few = taps.in_channels < FEW_CHANNELS
    grad_weight_kernel[_grad_weight_grid(partials, taps, x.dtype, precision)](
        x, dy, partials,
        x.shape[0], x.shape[1], x.shape[2], dy.shape[1], dy.shape[2],
        taps.in_channels, taps.out_channels, taps.groups, *taps.padding, *taps.dilation,
        group, splits,
        R=taps.size[0], S=taps.size[1], STRIDE_H=taps.stride[0], STRIDE_W=taps.stride[1],
        FLATTEN=few, PRECISION=precision,
        BLOCK_P=tile.pixels, BLOCK_K=tile.out_channels, BLOCK_C=tile.in_channels,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip


def _launch_grad_weight_flat(
    x: Tensor, dy: Tensor, partials: Tensor, taps: Filter, group: int, splits: int, precision: str
) -> None:
    tile = grad_weight_tile(taps, x.dtype, precision)
    num_samples, height, width, in_channels = x.shape
    out_channels = dy.shape[3]
    flat = (num_samples, height * width, -1)
    rows = (num_samples, height, -1)
    edge = block_of(height, 16, tile.pixels)
    grad_weight_flat_kernel[_grad_weight_grid(partials, taps, x.dtype, precision)](
        TensorDescriptor.from_tensor(x.view(flat), [1, tile.pixels, tile.in_channels]),
        TensorDescriptor.from_tensor(dy.view(flat), [1, tile.pixels, tile.out_channels]),
        TensorDescriptor.from_tensor(x.view(rows), [1, edge, tile.in_channels]),
        TensorDescriptor.from_tensor(dy.view(rows), [1, edge, tile.out_channels]),
        partials,
        num_samples, height, width, in_channels, out_channels, group, splits,
        *taps.padding, *taps.dilation,
        R=taps.size[0], S=taps.size[1], PRECISION=precision,
        BLOCK_P=tile.pixels, BLOCK_E=edge, BLOCK_K=tile.out_channels, BLOCK_C=tile.in_channels,
        STAGES=tile.num_stages, num_warps=tile.num_warps,
    )  # fmt: skip


def _launch_grad_weight_samples(
    x: Tensor, dy: Tensor, partials: Tensor, taps: Filter, group: int, splits: int, precision: str
) -> None:
    tile = grad_weight_tile(taps, x.dtype, precision)
    samples = gcd(group, tile.pixels)
    grad_weight_samples_kernel[_grad_weight_grid(partials, taps, x.dtype, precision)](
        TensorDescriptor.from_tensor(x.view(x.shape[0], -1), [samples, tile.in_channels]),
        TensorDescriptor.from_tensor(dy.view(dy.shape[0], -1), [samples, tile.out_channels]),
        partials,
        x.shape[0], x.shape[1], x.shape[2], dy.shape[1], dy.shape[2],
        taps.in_channels, taps.out_channels, group, splits, *taps.padding, *taps.dilation,
        R=taps.size[0], S=taps.size[1], STRIDE_H=taps.stride[0], STRIDE_W=taps.stride[1],
        PRECISION=precision,
        BLOCK_N=samples, BLOCK_K=tile.out_channels, BLOCK_C=tile.in_channels,
        STAGES=tile.num_stages, num_warps=tile.num_warps,
    )  # fmt: skip


def _grad_weight_grid(
    partials: Tensor, taps: Filter, dtype: torch.dtype, precision: str
) -> tuple[int]:
    num_partials = partials.shape[0] * partials.shape[1]
    return (num_partials * grad_weight_programs(taps, dtype, precision),)


# References


def conv2d_grad_weight_groups_reference(
    x: Tensor, dy: Tensor, partials: Tensor, *, group: int, splits: int,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, precision: str,
) -> None:  # fmt: skip
    """Plain `conv2d_grad_weight_groups`, in float32; slice j is a share of the rows of dy."""
    size_r = partials.shape[3]
    size = [partials.shape[axis] for axis in (2, 5, 3, 4)]
    share = triton.cdiv(dy.shape[1], splits)
    with rounding(precision):
        for index, start in enumerate(range(0, x.shape[0], group)):
            samples = x[start : start + group].float().permute(0, 3, 1, 2)
            padded = torch_pad(samples, (0, 0, padding[0], padding[0]))
            grad = dy[start : start + group].float().permute(0, 3, 1, 2)
            for j in range(splits):
                rows = grad[:, :, j * share : (j + 1) * share]
                if rows.shape[2] == 0:
                    partials[index, j].zero_()
                    continue
                top = j * share * stride[0]
                reach = (rows.shape[2] - 1) * stride[0] + (size_r - 1) * dilation[0] + 1
                result = conv2d_weight(
                    padded[:, :, top : top + reach], size, rows,
                    stride, (0, padding[1]), dilation, groups,
                )  # fmt: skip
                partials[index, j] = result.permute(0, 2, 3, 1)


def conv2d_grad_bias_groups_reference(dy: Tensor, partials: Tensor, *, group: int) -> None:
    """Plain `conv2d_grad_bias_groups`."""
    sum_rows_reference(dy.view(-1, dy.shape[3]), partials, group=group * dy.shape[1] * dy.shape[2])

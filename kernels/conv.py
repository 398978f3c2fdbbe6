"""Convolution over NHWC maps: launchers and references of the forward pass and its three gradients.

Weights come packed (conv_pack.py). The kernels are in conv_pointer.py, for every shape, and in
conv_tma.py, for maps whose channels suit tensor descriptors. Which of them runs, its tile and the
order of its sums depend on every size but the number of samples, so that a sample's result has the
same bits in whatever run it is computed. `precision` is "ieee" or "tf32", for float32 maps.
"""

import contextlib
from collections.abc import Iterator
from math import gcd
from typing import Final

import torch
import triton
from torch import Tensor
from torch.nn.functional import conv2d as torch_conv2d
from torch.nn.functional import pad as torch_pad
from torch.nn.grad import conv2d_input, conv2d_weight
from triton.tools.tensor_descriptor import TensorDescriptor

from .conv_pointer import conv_kernel, grad_weight_kernel
from .conv_tiles import (
    FEW_CHANNELS,
    SHARED_BY,
    STEP_NBYTES,
    Filter,
    Pair,
    block_of,
    box_of,
    box_tile,
    grad_weight_pointer_tile,
    grad_weight_programs,
    grad_weight_tile,
    half_of,
    pointer_tile,
)
from .conv_tma import conv_box_kernel, grad_weight_flat_kernel, grad_weight_samples_kernel
from .device import capability, num_sms
from .reduce import sum_rows, sum_rows_reference

SMALL_MAP: Final = 16 * 16  # output pixels up to which a weight gradient runs over samples


def conv2d(
    x: Tensor, packed: Tensor, bias: Tensor | None, y: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, precision: str,
) -> None:  # fmt: skip
    """y [N, P, Q, K] from x [N, H, W, C], packed [K, R, S, C/g] and bias, float32 [K] or None."""
    if y.numel() == 0:
        return
    out_channels, size_r, size_s, in_channels = packed.shape
    taps = Filter(
        (size_r, size_s), stride, padding, dilation, groups, in_channels, out_channels // groups
    )
    if _suits_box(x, y, taps, precision):
        _launch_box(x, packed, bias, y, taps, precision)
    else:
        _launch_pointer(x, packed, bias, y, taps, (1, 1), precision)


def conv2d_grad_input(
    dy: Tensor, packed: Tensor, dx: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, precision: str,
) -> None:  # fmt: skip
    """Gradient dx [N, H, W, C] from dy [N, P, Q, K] and packed [C, R, S, K/g], the filter turned.

    It is a convolution of dy spread out by the stride.
    """
    if dx.numel() == 0:
        return
    in_channels, size_r, size_s, out_channels = packed.shape
    turned = (dilation[0] * (size_r - 1) - padding[0], dilation[1] * (size_s - 1) - padding[1])
    taps = Filter(
        (size_r, size_s), (1, 1), turned, dilation, groups, out_channels, in_channels // groups
    )
    if stride == (1, 1) and _suits_box(dy, dx, taps, precision):
        _launch_box(dy, packed, None, dx, taps, precision)
    else:
        _launch_pointer(dy, packed, None, dx, taps, stride, precision)


def conv2d_grad_weight(
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
    if not _suits_descriptors(x, dy, taps, precision):
        _launch_grad_weight(x, dy, partials, taps, group, splits, precision)
    elif group % FEW_CHANNELS == 0 and dy.shape[1] * dy.shape[2] <= SMALL_MAP:
        _launch_grad_weight_samples(x, dy, partials, taps, group, splits, precision)
    elif _is_flat(x, dy, taps):
        _launch_grad_weight_flat(x, dy, partials, taps, group, splits, precision)
    else:
        _launch_grad_weight(x, dy, partials, taps, group, splits, precision)


def conv2d_grad_bias(dy: Tensor, partials: Tensor, *, group: int) -> None:
    """Sums of dy [N, P, Q, K] over groups of samples and their pixels, as `sum_rows` makes them."""
    sum_rows(dy.view(-1, dy.shape[3]), partials, group=group * dy.shape[1] * dy.shape[2])


def grad_weight_tiles(
    out_channels: int, in_channels: int, size_r: int, size_s: int, groups: int,
    dtype: torch.dtype, precision: str,
) -> int:  # fmt: skip
    """Multiprocessors that one partial of `conv2d_grad_weight` fills; in_channels of one group."""
    taps = Filter(
        (size_r, size_s), (1, 1), (0, 0), (1, 1), groups, in_channels, out_channels // groups
    )
    shared_by = SHARED_BY if grad_weight_tile(taps, dtype, precision).num_warps == 2 else 1
    return triton.cdiv(grad_weight_programs(taps, dtype, precision), shared_by)


# Which kernel


def _suits_descriptors(x: Tensor, y: Tensor, taps: Filter, precision: str) -> bool:
    """Whether both maps can be read by TMA: Hopper on, whole 64-byte steps, 16-byte addresses."""
    if (0, 0) < capability() < (9, 0) or taps.groups != 1:
        return False
    if x.dtype == torch.float32 and precision == "ieee":
        return False
    nbytes = taps.in_channels * x.dtype.itemsize, taps.out_channels * x.dtype.itemsize
    aligned = x.data_ptr() % 16 == 0 and y.data_ptr() % 16 == 0
    return aligned and nbytes[0] % (STEP_NBYTES // 2) == 0 and nbytes[1] % 16 == 0


def _suits_box(x: Tensor, y: Tensor, taps: Filter, precision: str) -> bool:
    few = taps.out_channels < 2 * FEW_CHANNELS
    return taps.stride == (1, 1) and not few and _suits_descriptors(x, y, taps, precision)


def _is_flat(x: Tensor, dy: Tensor, taps: Filter) -> bool:
    """Whether a tap is one offset in the flat map: stride 1, sides kept, moving under a row."""
    kept = x.shape[1:3] == dy.shape[1:3] and taps.stride == (1, 1)
    return kept and taps.dilation[1] * (taps.size[1] - 1) // 2 < x.shape[2]


# Launches


def _launch_pointer(
    x: Tensor, packed: Tensor, bias: Tensor | None, y: Tensor,
    taps: Filter, up: Pair, precision: str,
) -> None:  # fmt: skip
    """`up` spreads x out: the stride of the convolution whose data gradient this is."""
    num_samples, out_h, out_w, _ = y.shape
    tile = pointer_tile(taps, x.dtype, precision)
    few = taps.in_channels < FEW_CHANNELS
    pixels = num_samples * triton.cdiv(out_h, up[0]) * triton.cdiv(out_w, up[1])
    grid = (
        triton.cdiv(pixels, tile.pixels) * triton.cdiv(taps.out_channels, tile.out_channels),
        taps.groups * up[0] * up[1],
    )
    conv_kernel[grid](
        x, packed, bias, y,
        num_samples, x.shape[1], x.shape[2], out_h, out_w,
        taps.in_channels, taps.out_channels, taps.groups, *taps.padding, *taps.dilation,
        R=taps.size[0], S=taps.size[1], STRIDE_H=taps.stride[0], STRIDE_W=taps.stride[1],
        UP_H=up[0], UP_W=up[1],
        STEP_H=up[0] // gcd(up[0], taps.dilation[0]), STEP_W=up[1] // gcd(up[1], taps.dilation[1]),
        HAS_BIAS=bias is not None, FLATTEN=few, PRECISION=precision,
        BLOCK_P=tile.pixels, BLOCK_K=tile.out_channels, BLOCK_C=tile.in_channels,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip


def _launch_box(
    x: Tensor, packed: Tensor, bias: Tensor | None, y: Tensor, taps: Filter, precision: str
) -> None:
    tile = box_tile(taps, x.dtype)
    if taps.size == (1, 1) and taps.padding == (0, 0):
        x = x.view(1, 1, -1, x.shape[3])
        y = y.view(1, 1, -1, y.shape[3])
        box = (1, 1, tile.pixels)
    else:
        box = box_of(y.shape[1], y.shape[2], tile.pixels)
    half = half_of(box) if tile.out_channels == 128 else box  # 64 would be halved between warps
    num_samples, height, width, _ = y.shape
    boxes = [triton.cdiv(side, step) for side, step in zip(y.shape, box, strict=False)]
    num_tiles = boxes[0] * boxes[1] * boxes[2] * triton.cdiv(taps.out_channels, tile.out_channels)
    conv_box_kernel[(min(num_tiles, num_sms()),)](
        TensorDescriptor.from_tensor(x, [*box, tile.in_channels]),
        TensorDescriptor.from_tensor(
            packed.view(taps.out_channels, -1), [tile.out_channels, tile.in_channels]
        ),
        bias,
        TensorDescriptor.from_tensor(y, [*half, tile.out_channels]),
        num_samples, height, width, taps.in_channels, taps.out_channels,
        *taps.padding, *taps.dilation,
        R=taps.size[0], S=taps.size[1], HAS_BIAS=bias is not None, PRECISION=precision,
        BLOCK_N=box[0], BLOCK_H=box[1], BLOCK_W=box[2],
        HALF_N=half[0], HALF_H=half[1], HALF_W=half[2],
        BLOCK_K=tile.out_channels, BLOCK_C=tile.in_channels,
        STAGES=tile.num_stages, FLATTEN=tile.flatten, num_warps=tile.num_warps,
    )  # fmt: skip


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


def conv2d_reference(
    x: Tensor, packed: Tensor, bias: Tensor | None, y: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, precision: str,
) -> None:  # fmt: skip
    """Plain `conv2d`."""
    weight = _computed(packed).permute(0, 3, 1, 2)
    with _rounding(precision):
        for part, out in _runs(x, y):
            result = torch_conv2d(
                _channels_first(part), weight, None, stride, padding, dilation, groups
            ).permute(0, 2, 3, 1)
            out.copy_(result if bias is None else result.float() + bias)


def conv2d_grad_input_reference(
    dy: Tensor, packed: Tensor, dx: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, precision: str,
) -> None:  # fmt: skip
    """Plain `conv2d_grad_input`."""
    grouped = _computed(packed).unflatten(0, (groups, -1)).flip(2, 3)  # [g, C/g, R, S, K/g]
    weight = grouped.permute(0, 4, 1, 2, 3).flatten(0, 1)
    with _rounding(precision):
        for part, out in _runs(dy, dx):
            size = (out.shape[0], out.shape[3], *out.shape[1:3])
            grad = _channels_first(part)
            result = conv2d_input(size, weight, grad, stride, padding, dilation, groups)
            out.copy_(result.permute(0, 2, 3, 1))


def conv2d_grad_weight_reference(
    x: Tensor, dy: Tensor, partials: Tensor, *, group: int, splits: int,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, precision: str,
) -> None:  # fmt: skip
    """Plain `conv2d_grad_weight`, in float32; slice j is an equal share of the rows of dy."""
    size_r = partials.shape[3]
    size = [partials.shape[axis] for axis in (2, 5, 3, 4)]
    share = triton.cdiv(dy.shape[1], splits)
    with _rounding(precision):
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


def conv2d_grad_bias_reference(dy: Tensor, partials: Tensor, *, group: int) -> None:
    """Plain `conv2d_grad_bias`."""
    sum_rows_reference(dy.view(-1, dy.shape[3]), partials, group=group * dy.shape[1] * dy.shape[2])


def _computed(tensor: Tensor) -> Tensor:
    """The tensor in the type that a reference computes in: float32, but bfloat16 on a GPU."""
    return tensor if tensor.is_cuda else tensor.float()


def _channels_first(nhwc: Tensor) -> Tensor:
    return _computed(nhwc).permute(0, 3, 1, 2)


def _runs(inputs: Tensor, outputs: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Whole maps on a GPU; on a CPU samples one by one, whose bits then depend on them alone."""
    if inputs.is_cuda:
        return iter([(inputs, outputs)] if len(inputs) else [])
    return zip(inputs.split(1), outputs.split(1), strict=True)


@contextlib.contextmanager
def _rounding(precision: str) -> Iterator[None]:
    """Let cuDNN round float32 operands to TF32, or not."""
    rounded = precision == "tf32"
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=rounded):
        yield

"""Convolution over NHWC maps: launchers and references of the forward pass and the data gradient.

Weights come packed (conv_pack.py). The kernels are in conv_pointer.py, for every shape, and in
conv_tma.py, for maps whose channels suit tensor descriptors. Which of them runs, its tile and the
order of its sums depend on every size but the number of samples, so that a sample's result has the
same bits in whatever run it is computed. `precision` is "ieee" or "tf32", for float32 maps.
"""

import contextlib
from collections.abc import Iterator
from math import gcd

import torch
import triton
from torch import Tensor
from torch.nn.functional import conv2d as torch_conv2d
from torch.nn.grad import conv2d_input
from triton.tools.tensor_descriptor import TensorDescriptor

from .conv_pointer import conv_kernel
from .conv_tiles import (
    FEW_CHANNELS,
    Filter,
    Pair,
    box_of,
    box_tile,
    half_of,
    pointer_tile,
    suits_descriptors,
)
from .conv_tma import conv_box_kernel
from .device import num_sms


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


# Which kernel


def _suits_box(x: Tensor, y: Tensor, taps: Filter, precision: str) -> bool:
    few = taps.out_channels < 2 * FEW_CHANNELS
    return taps.stride == (1, 1) and not few and suits_descriptors(x, y, taps, precision)


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


# References


def conv2d_reference(
    x: Tensor, packed: Tensor, bias: Tensor | None, y: Tensor, *,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, precision: str,
) -> None:  # fmt: skip
    """Plain `conv2d`."""
    weight = _computed(packed).permute(0, 3, 1, 2)
    with rounding(precision):
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
    with rounding(precision):
        for part, out in _runs(dy, dx):
            size = (out.shape[0], out.shape[3], *out.shape[1:3])
            grad = _channels_first(part)
            result = conv2d_input(size, weight, grad, stride, padding, dilation, groups)
            out.copy_(result.permute(0, 2, 3, 1))


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
def rounding(precision: str) -> Iterator[None]:
    """Let cuDNN round float32 operands to TF32, or not."""
    rounded = precision == "tf32"
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=rounded):
        yield

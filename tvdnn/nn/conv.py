"""Convolution over the kernels."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import InputError
from ..functional import convolution, pair
from ..kernels.conv.depthwise import suits_depthwise
from .eager import autocast, checked_map, run, torchs_own
from .shapes import result_shape

_SWITCH: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]


class Conv2d(torch.nn.Conv2d):
    """torch.nn.Conv2d of maps [N, C, H, W], run by tvdnn's kernels in the input's type.

    With a padding_mode other than "zeros" it is torch's own.
    """

    def forward(self, input: Tensor) -> Tensor:
        weight, groups = self.weight, self.groups
        if self.padding_mode != "zeros" or torchs_own(input, weight):
            return super().forward(input)
        if input.dim() == 4 and input.shape[1] != weight.shape[1] * groups:
            shapes = f"shape {tuple(input.shape)}; weight is {tuple(weight.shape)}"
            raise InputError(f"the input has {shapes} in {groups} groups")
        x, padding = checked_map(autocast(input)), self.padding
        if isinstance(padding, str):
            x, padding = _padded(x, weight, padding, pair(self.dilation))
        geometry = (pair(self.stride), pair(padding), pair(self.dilation))
        out = result_shape(functional.conv2d, (x.shape, weight.shape), None, *geometry, groups)
        kind = "conv2d"
        if suits_depthwise(x.shape[1], out[3], groups, (weight.shape[2], weight.shape[3])):
            kind = "conv2d_depthwise"
        attrs = convolution(pair(self.kernel_size), *geometry, groups)
        return run(kind, x, weight, self.bias, attrs=attrs, out=out, precision=precision_of(x))


class LazyConv2d(torch.nn.LazyConv2d, Conv2d):  # type: ignore[misc]
    """A Conv2d that takes its input channels from its first input."""

    cls_to_become = Conv2d


def _padded(
    x: Tensor, weight: Tensor, padding: str, dilation: tuple[int, int]
) -> tuple[Tensor, tuple[int, int]]:
    """`x` with the odd row and column of "same" padding added, and the even part that is left."""
    if padding == "valid":
        return x, (0, 0)
    height, width = (d * (k - 1) for k, d in zip(weight.shape[2:], dilation, strict=True))
    if height % 2 or width % 2:
        x = functional.pad(x, (0, width % 2, 0, height % 2))
    return x, (height // 2, width // 2)


def precision_of(x: Tensor) -> str:
    """What torch's own switches ask of a float32 convolution; the CPU knows no TF32."""
    return "tf32" if x.is_cuda and _SWITCH.fp32_precision == "tf32" else "ieee"

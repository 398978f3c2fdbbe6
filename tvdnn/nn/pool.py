"""Pooling over the kernels."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..functional import pair, window
from .eager import checked_map, run, torchs_own
from .shapes import result_shape


class MaxPool2d(torch.nn.MaxPool2d):
    """torch.nn.MaxPool2d of maps [N, C, H, W], run by tvdnn's kernels; torch's own with indices."""

    def forward(self, input: Tensor) -> Any:
        if self.return_indices or torchs_own(input):
            return super().forward(input)
        sizes = (self.kernel_size, self.stride, self.padding)
        attrs = window(*sizes) | {"dilation": pair(self.dilation)}
        given = (*sizes, self.dilation, self.ceil_mode)
        out = result_shape(functional.max_pool2d, (checked_map(input).shape,), *given)
        return run("max_pool2d", input, attrs=attrs, out=out)


class AvgPool2d(torch.nn.AvgPool2d):
    """torch.nn.AvgPool2d of maps [N, C, H, W], run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        if torchs_own(input):
            return super().forward(input)
        sizes = (self.kernel_size, self.stride, self.padding)
        attrs = window(*sizes)
        attrs["count_include_pad"] = self.count_include_pad
        attrs["divisor_override"] = self.divisor_override
        given = (*sizes, self.ceil_mode, self.count_include_pad, self.divisor_override)
        out = result_shape(functional.avg_pool2d, (checked_map(input).shape,), *given)
        return run("avg_pool2d", input, attrs=attrs, out=out)


class AdaptiveAvgPool2d(torch.nn.AdaptiveAvgPool2d):
    """torch.nn.AdaptiveAvgPool2d of maps [N, C, H, W], run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        if torchs_own(input):
            return super().forward(input)
        shapes, function = (checked_map(input).shape,), functional.adaptive_avg_pool2d
        out = result_shape(function, shapes, self.output_size)
        return run("adaptive_avg_pool2d", input, out=out)

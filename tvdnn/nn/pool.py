"""Pooling over the kernels."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..functional import pair, window
from .conv import KNOWN_SHAPES
from .eager import checked_map, run, torchs_own


class MaxPool2d(torch.nn.MaxPool2d):
    """torch.nn.MaxPool2d of maps [N, C, H, W], run by tvdnn's kernels; torch's own with indices."""

    def forward(self, input: Tensor) -> Any:
        if self.return_indices or is_torchs(input):
            return super().forward(input)
        sizes = (self.kernel_size, self.stride, self.padding)
        settings = window(*sizes) | {"dilation": pair(self.dilation)}
        given = (*sizes, self.dilation, self.ceil_mode)
        return pooled("max_pool2d", input, functional.max_pool2d, given, settings)


class AvgPool2d(torch.nn.AvgPool2d):
    """torch.nn.AvgPool2d of maps [N, C, H, W], run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        if is_torchs(input):
            return super().forward(input)
        sizes = (self.kernel_size, self.stride, self.padding)
        averaging = {
            "count_include_pad": self.count_include_pad,
            "divisor_override": self.divisor_override,
        }
        given = (*sizes, self.ceil_mode, *averaging.values())
        settings = window(*sizes) | averaging
        return pooled("avg_pool2d", input, functional.avg_pool2d, given, settings)


class AdaptiveAvgPool2d(torch.nn.AdaptiveAvgPool2d):
    """torch.nn.AdaptiveAvgPool2d of maps [N, C, H, W], run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        if is_torchs(input):
            return super().forward(input)
        function = functional.adaptive_avg_pool2d
        return pooled("adaptive_avg_pool2d", input, function, (self.output_size,), {})


def is_torchs(x: Tensor) -> bool:
    return torchs_own(x) or x.numel() == 0


def pooled(
    kind: str,
    x: Tensor,
    function: Callable[..., Tensor],
    given: tuple[Any, ...],
    settings: dict[str, Any],
) -> Tensor:
    """What the op of this kind makes of `x`, as torch's function with the arguments `given`."""
    hashable = (tuple(each) if isinstance(each, list) else each for each in given)
    shape = _result_shape(function, checked_map(x).shape, *hashable)
    return run(kind, x, attrs=settings, out=shape)


@lru_cache(maxsize=KNOWN_SHAPES)
def _result_shape(function: Callable[..., Tensor], x: torch.Size, *given: Any) -> tuple[int, ...]:
    """What torch says of the result, which also checks the arguments."""
    n, c, height, width = function(torch.empty(x, device="meta"), *given).shape
    return n, height, width, c

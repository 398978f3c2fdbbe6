"""Transposed convolution over the kernels."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import InputError
from ..functional import Ints, pair
from .conv import KNOWN_SHAPES, named, precision_of
from .eager import autocast, checked_map, run, torchs_own


class ConvTranspose2d(torch.nn.ConvTranspose2d):
    """torch.nn.ConvTranspose2d of maps [N, C, H, W], run by tvdnn's kernels in the input's type."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        if torchs_own(input):
            return super().forward(input, output_size)
        assert not isinstance(self.padding, str)  # which torch's constructor refuses
        sizes = (self.stride, self.padding, self.kernel_size, self.dilation)
        stride, padding, kernel, dilation = ([*pair(size)] for size in sizes)
        added = self._output_padding(input, output_size, stride, padding, kernel, 2, dilation)
        geometry = (self.stride, self.padding, (added[0], added[1]), self.groups, self.dilation)
        return conv_transpose2d(input, self.weight, self.bias, *geometry)


def conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """torch.nn.functional.conv_transpose2d of maps [N, C, H, W]; parameters of any float type."""
    settings: Any = (pair(stride), pair(padding), pair(output_padding), groups, pair(dilation))
    if torchs_own(x, weight):
        return functional.conv_transpose2d(x, weight, bias, *settings)
    if x.dim() == 4 and x.shape[1] != weight.shape[0]:
        raise InputError(f"the input has shape {tuple(x.shape)}; weight is {tuple(weight.shape)}")
    x = checked_map(autocast(x))
    if x.numel() == 0:
        params = (weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
        return functional.conv_transpose2d(x, *params, *settings)
    out = _result_shape(x.shape, weight.shape, *settings)
    attrs = named(settings[0], settings[1], settings[4]) | {"groups": groups}
    precision = precision_of(x)
    return run("conv_transpose2d", x, weight, bias, attrs=attrs, out=out, precision=precision)


@lru_cache(maxsize=KNOWN_SHAPES)
def _result_shape(x: torch.Size, weight: torch.Size, *settings: Any) -> tuple[int, ...]:
    """What torch says of the result, which also checks the arguments."""
    maps, filters = torch.empty(x, device="meta"), torch.empty(weight, device="meta")
    n, c, height, width = functional.conv_transpose2d(maps, filters, None, *settings).shape
    return n, height, width, c

"""Channel shuffle over the kernels."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..kernels.copy import layout as kernels
from .maps import apply, checked, choose, nchw, nhwc, torchs_own


class ChannelShuffle(torch.nn.ChannelShuffle):
    """torch.nn.ChannelShuffle of maps [N, C, H, W], run by tvdnn's kernels (ShuffleNet, 2018)."""

    def forward(self, input: Tensor) -> Tensor:
        return channel_shuffle(input, self.groups)


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """torch.nn.functional.channel_shuffle: the channels of `groups` runs take turns."""
    if torchs_own(x) or x.dim() != 4 or x.shape[1] % groups != 0:
        return functional.channel_shuffle(x, groups)
    return apply(_ChannelShuffle, checked(x), groups)


class _ChannelShuffle(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: int) -> Tensor:
        ctx.groups = groups
        return _shuffled(x, groups)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return _shuffled(dy, dy.shape[1] // ctx.groups), None


def _shuffled(x: Tensor, groups: int) -> Tensor:
    maps = nhwc(x)
    y = torch.empty_like(maps)
    choose(x, kernels.shuffle_channels, kernels.shuffle_channels_reference)(maps, y, groups=groups)
    return nchw(y, like=x)

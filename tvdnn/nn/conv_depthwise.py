"""Convolutions of each channel by a filter of its own: how conv.py launches their kernels."""

from typing import Any

from torch import Tensor

from ..kernels.conv import depthwise as kernels
from ..kernels.conv import pack_weight as conv_pack
from .maps import choose


def is_depthwise(weight: Tensor, groups: int) -> bool:
    """Whether a layer is one of those that the depthwise kernels take."""
    out_channels, in_channels, height, width = weight.shape
    channels = in_channels * groups
    suits: bool = kernels.suits_depthwise(channels, out_channels, groups, (height, width))
    return suits


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, **settings: Any) -> None:
    """y [N, P, Q, C] from maps x [N, H, W, C]; `settings` are stride, padding and so on."""
    launch = choose(x, kernels.depthwise_conv2d, kernels.depthwise_conv2d_reference)
    launch(x, _packed(weight, x), None if bias is None else bias.float(), y, **settings)


def grad_input(dy: Tensor, weight: Tensor, dx: Tensor, **settings: Any) -> None:
    """dx [N, H, W, C] from maps dy [N, P, Q, C]."""
    launch = choose(
        dy, kernels.depthwise_conv2d_grad_input, kernels.depthwise_conv2d_grad_input_reference
    )
    launch(dy, _packed(weight, dy), dx, **settings)


def weight_partials(x: Tensor, dy: Tensor, weight: Tensor, **geometry: Any) -> Tensor:
    """The sums that the weight's gradient adds up from."""
    channels, _, *size = weight.shape
    plan = kernels.depthwise_plan((dy.shape[1], dy.shape[2]), channels, (size[0], size[1]))
    partials = dy.new_zeros(plan.splits, channels, *size, 1).float()
    launch = choose(
        dy, kernels.depthwise_conv2d_grad_weight, kernels.depthwise_conv2d_grad_weight_reference
    )
    launch(x, dy, partials, first=True, **geometry)
    return partials


def _packed(weight: Tensor, maps: Tensor) -> Tensor:
    """The weight [C, 1, R, S] as [R, S, C] in the maps' type."""
    channels, _, *size = weight.shape
    packed = maps.new_empty(1, *size, channels)
    pack = choose(maps, conv_pack.pack_weight, conv_pack.pack_weight_reference)
    pack(weight.float().transpose(0, 1), packed, groups=1)
    return packed[0]

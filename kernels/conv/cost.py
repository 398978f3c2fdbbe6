"""The least work of convolutions, without taps on padding and pixels that no window reads."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..language.cost import Cost, moved


def convolution(
    maps: Tensor, sides: Sequence[int], packed: Tensor, *operands: Any,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], width: int = 0,
    **settings: Any,
) -> Cost:  # fmt: skip
    """The cost of a convolution of `maps` [N, H, W, C] that gives maps of these sides.

    Every window has a multiply-add for each tap of packed [K, R, S, C/g]. Of packed [K, R, S, band]
    the C/g = `width` channels of a group count. All `operands` are moved.
    """
    pairs = pixels = 1
    steps = zip(stride, padding, dilation, strict=True)
    for axis, (step, pad, spread) in enumerate(steps):
        height, taps = maps.shape[1 + axis], packed.shape[1 + axis]
        places = [i * step - pad + tap * spread for i in range(sides[axis]) for tap in range(taps)]
        inside = [place for place in places if 0 <= place < height]
        pairs, pixels = pairs * len(inside), pixels * len({*inside})
    per_pair = packed.shape[0] * (width or packed.shape[3])
    read = len(maps) * pixels * maps.shape[3] * maps.element_size()
    return Cost(2.0 * len(maps) * pairs * per_pair, read + moved(packed, operands, settings))


def forward(
    x: Tensor, packed: Tensor, bias: Tensor | None, y: Tensor, *, groups: int, **settings: Any
) -> Cost:
    """The cost of `conv2d`."""
    width = x.shape[3] // groups
    return convolution(x, y.shape[1:3], packed, bias, y, width=width, **settings)


def max_pool(
    x: Tensor, packed: Tensor, bias: Tensor | None, y: Tensor, codes: Tensor, *, groups: int,
    **settings: Any,
) -> Cost:  # fmt: skip
    """The cost of `conv2d_max_pool`, with the outputs that pooling 2x2 reads."""
    sides, width = [2 * side for side in y.shape[1:3]], x.shape[3] // groups
    return convolution(x, sides, packed, bias, y, codes, width=width, **settings)


def grad_input(dy: Tensor, packed: Tensor, dx: Tensor, *, groups: int, **settings: Any) -> Cost:
    """The cost of `conv2d_grad_input`: the products of the forward pass, and both maps whole."""
    width = dy.shape[3] // groups
    flops = convolution(dx, dy.shape[1:3], packed, width=width, **settings).flops
    kept = {name: value for name, value in settings.items() if isinstance(value, Tensor)}
    return Cost(flops, moved(dy, packed, dx, kept))


def grad_weight(x: Tensor, dy: Tensor, partials: Tensor, *, first: bool, **settings: Any) -> Cost:
    """The cost of `conv2d_grad_weight`. Running sums that are continued are read too."""
    sums = [partials] if first else [partials, partials]
    cost = convolution(x, dy.shape[1:3], partials[0], dy, **settings)
    return Cost(cost.flops, cost.nbytes - moved(partials[0]) + moved(sums))


def depthwise(x: Tensor, packed: Tensor, bias: Tensor | None, y: Tensor, **settings: Any) -> Cost:
    """The cost of `depthwise_conv2d`, with packed [R, S, C]."""
    by_channel = packed.permute(2, 0, 1)[..., None]
    return forward(x, by_channel, bias, y, groups=x.shape[3], **settings)


def depthwise_grad_input(dy: Tensor, packed: Tensor, dx: Tensor, **settings: Any) -> Cost:
    """The cost of `depthwise_conv2d_grad_input`, with packed [R, S, C]."""
    by_channel = packed.permute(2, 0, 1)[..., None]
    return grad_input(dy, by_channel, dx, groups=dy.shape[3], **settings)


def add_mask(dy: Tensor, packed: Tensor, *operands: Tensor, **precisions: str) -> Cost:
    """The cost of `conv2d_grad_last`, whose filter is 1x1."""
    return Cost(2.0 * dy.numel() * packed.shape[0], moved(dy, packed, operands))

"""Calls of linear layers; of maps they are convolutions of one pixel."""

from collections.abc import Mapping
from typing import Any

from torch.fx import Node

from .call import Call, Shape, UnsupportedCallError, axes_of

POINTWISE: Mapping[str, Any] = {
    "kernel": (1, 1),
    "stride": (1, 1),
    "padding": (0, 0),
    "dilation": (1, 1),
    "groups": 1,
}


def linear(out: Shape, x: Node, weight: Node, bias: Node | None = None) -> Call:
    if len(out) == 2:
        return Call("linear", (x,), (weight, bias))
    if len(out) != 4 or axes_of(x)[-1] != 3:
        raise UnsupportedCallError(
            f"linear over an input of {len(out)} dimensions"
            " (it takes [N, F], or maps permuted to [N, H, W, C])"
        )
    return Call("conv2d", (x,), (weight, bias), POINTWISE, axes_of(x))

"""Calls of max, average and adaptive average pooling."""

from typing import Any

from torch.fx import Node

from ..functional import Ints, pair, window
from .call import Call, Shape, shape_of


def max_pool2d(
    out: Shape,
    x: Node,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,  # with it torch calls another function
) -> Call:
    attrs = window(kernel_size, stride, padding) | {"dilation": pair(dilation)}
    return Call("max_pool2d", (x,), (), attrs)


def avg_pool2d(
    out: Shape,
    x: Node,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Call:
    attrs = window(kernel_size, stride, padding)
    if attrs["kernel"] == attrs["stride"] == (1, 1) and divisor_override in (None, 1):
        return Call("view", (x,))
    averaging = {"count_include_pad": count_include_pad, "divisor_override": divisor_override}
    return Call("avg_pool2d", (x,), (), attrs | averaging)


def adaptive_avg_pool2d(out: Shape, x: Node, output_size: Any) -> Call:
    return Call("view" if out == shape_of(x) else "adaptive_avg_pool2d", (x,))

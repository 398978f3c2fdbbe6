"""Calls of transposed convolutions."""

from torch.fx import Node

from ..functional import Ints, pair
from .call import Call, Shape, Source, in_row
from .conv import taps_of
from .reshape import as_rows, of_rows


def conv_transpose1d(
    out: Shape,
    x: Source,
    weight: Node,
    bias: Node | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Call:
    """A transposed convolution of maps of one row."""
    settings = (in_row(stride, 1), in_row(padding, 0), 0, groups, in_row(dilation, 1))
    maps = (*out[:2], 1, out[2])
    return of_rows(out, conv_transpose2d(maps, as_rows(x), weight, bias, *settings))


def conv_transpose2d(
    out: Shape,
    x: Source,
    weight: Node,
    bias: Node | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Call:
    """The padding of the output shows in its shape."""
    attrs = {
        "kernel": taps_of(weight),
        "stride": pair(stride),
        "padding": pair(padding),
        "dilation": pair(dilation),
        "groups": groups,
    }
    return Call("conv_transpose2d", (x,), (weight, bias), attrs)

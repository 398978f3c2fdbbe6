"""Calls of transposed convolutions."""

from torch.fx import Node

from .call import Call, Ints, Shape, pair, shape_of


def conv_transpose2d(
    out: Shape,
    x: Node,
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
        "kernel": pair(shape_of(weight)[2:]),
        "stride": pair(stride),
        "padding": pair(padding),
        "dilation": pair(dilation),
        "groups": groups,
    }
    return Call("conv_transpose2d", (x,), (weight, bias), attrs)

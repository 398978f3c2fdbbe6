"""Calls of convolutions, depthwise ones among them."""

from torch.fx import Node

from ..kernels.conv_depthwise import suits_depthwise
from .call import Call, Ints, Shape, UnsupportedCallError, pair, shape_of


def conv2d(
    out: Shape,
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Call:
    kernel = pair(shape_of(weight)[2:])
    attrs = {
        "kernel": kernel,
        "stride": pair(stride),
        "padding": _resolved_padding(padding, kernel, pair(dilation)),
        "dilation": pair(dilation),
        "groups": groups,
    }
    depthwise = suits_depthwise(shape_of(x)[1], out[1], groups, kernel)
    return Call("conv2d_depthwise" if depthwise else "conv2d", (x,), (weight, bias), attrs)


def _resolved_padding(
    padding: Ints | str, kernel: tuple[int, int], dilation: tuple[int, int]
) -> tuple[int, int]:
    """The numbers behind "same" and "valid"."""
    if not isinstance(padding, str):
        return pair(padding)
    if padding == "valid":
        return 0, 0
    height, width = (d * (k - 1) for k, d in zip(kernel, dilation, strict=True))
    if height % 2 or width % 2:
        raise UnsupportedCallError(
            f'conv2d with kernel {kernel} and padding="same", which pads unevenly'
        )
    return height // 2, width // 2

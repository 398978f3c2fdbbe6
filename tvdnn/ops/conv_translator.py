"""Calls of convolutions, depthwise ones among them."""

from torch.fx import Node

from ..functional import Ints, convolution, in_row, pair
from ..kernels.conv.depthwise import suits_depthwise
from ..kernels.conv.tiles import Pair
from .remap import behind_zeros, padded
from .reshape_translator import as_rows, of_rows
from .traced_op import Shape, Source, TracedOp, shape_of


def conv(
    out: Shape,
    x: Source,
    weight: Node,
    bias: Node | None = None,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> TracedOp:
    """A convolution of maps, or of rows [N, C, L] as maps of one row."""
    if len(shape_of(weight)) == 3 and len(shape_of(x)) != 4:
        given = padding if isinstance(padding, str) else in_row(padding, 0)
        settings = (in_row(stride, 1), given, in_row(dilation, 1), groups)
        return of_rows(out, conv((*out[:2], 1, out[2]), as_rows(x), weight, bias, *settings))
    kernel = taps_of(weight)
    if isinstance(padding, str):
        x, own = _padded(x, padding, kernel, pair(dilation))
    else:
        own = pair(padding)
    x, added = behind_zeros(x, _room(kernel, pair(dilation), own))
    attrs = convolution(kernel, stride, (own[0] + added[0], own[1] + added[1]), dilation, groups)
    depthwise = suits_depthwise(shape_of(x)[1], out[1], groups, kernel)
    return TracedOp("conv2d_depthwise" if depthwise else "conv2d", (x,), (weight, bias), attrs)


def taps_of(weight: Node) -> Pair:
    """Rows and columns of a filter; one of a row has one."""
    return pair((1, *shape_of(weight)[2:])[-2:])


def _room(kernel: Pair, dilation: Pair, padding: Pair) -> Pair:
    """The padding that a convolution can still take: a window less one tap."""
    reach = [d * (k - 1) - p for k, d, p in zip(kernel, dilation, padding, strict=True)]
    return reach[0], reach[1]


def _padded(x: Source, padding: str, kernel: Pair, dilation: Pair) -> tuple[Source, Pair]:
    """The even part of "same" or "valid" padding, and `x` padded by its odd row and column."""
    if padding == "valid":
        return x, (0, 0)
    height, width = (d * (k - 1) for k, d in zip(kernel, dilation, strict=True))
    return padded(x, {2: (0, height % 2), 3: (0, width % 2)}), (height // 2, width // 2)

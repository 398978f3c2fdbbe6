"""Calls of convolutions, depthwise ones among them."""

from collections.abc import Callable, Mapping
from typing import Any

from torch.fx import Node

from ..functional import convolution, pair
from ..kernels.conv.depthwise import suits_depthwise
from ..kernels.conv.tiles import Pair
from .operator import Translator
from .remap import behind_zeros, padded
from .reshape_translator import as_rows, of_rows, rows_as_maps
from .traced_op import Shape, Source, TracedOp, given_settings, shape_of

Params = tuple[Node, Node | None]  # weight and bias


def convolving(
    defaults: Mapping[str, Any], make: Callable[[Shape, Source, Params, dict[str, Any]], TracedOp]
) -> Translator:
    """The translator of a convolution of maps, and of rows [N, C, L] as maps of one row."""

    def translate(
        out: Shape, x: Source, weight: Node, bias: Node | None = None, *given: Any, **named: Any
    ) -> TracedOp:
        params, settings = (weight, bias), given_settings(defaults, given, named)
        if len(shape_of(weight)) == 4:
            return make(out, x, params, settings)
        maps = (*out[:2], 1, out[2])
        return of_rows(out, make(maps, as_rows(x), params, rows_as_maps(settings)))

    return translate


def _conv(out: Shape, x: Source, params: Params, settings: dict[str, Any]) -> TracedOp:
    kernel, dilation, padding = taps_of(params[0]), pair(settings["dilation"]), settings["padding"]
    if isinstance(padding, str):
        x, padding = _padded(x, padding, kernel, dilation)
    padding = pair(padding)
    x, added = behind_zeros(x, _room(kernel, dilation, padding))
    settings["padding"] = (padding[0] + added[0], padding[1] + added[1])
    depthwise = suits_depthwise(shape_of(x)[1], out[1], settings["groups"], kernel)
    kind, attrs = "conv2d_depthwise" if depthwise else "conv2d", convolution(kernel, **settings)
    return TracedOp(kind, (x,), params, attrs)


conv = convolving({"stride": 1, "padding": 0, "dilation": 1, "groups": 1}, _conv)


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

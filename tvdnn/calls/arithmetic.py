"""Calls of sums, products and quotients: of maps, numbers, channels' parameters and gates."""

from typing import Any

from torch.fx import Node

from .call import Call, Shape, UnsupportedCallError, axes_of, shape_of


def add(out: Shape, x: Any, other: Any, alpha: float = 1) -> Call:
    if not isinstance(x, Node):
        return _affine(other, alpha, x)
    if not isinstance(other, Node):
        return _affine(x, 1, alpha * other)
    if alpha == 1 and (call := _by_channel("channel_add", x, other)):
        return call
    if shape_of(x) == shape_of(other):
        return Call("add" if alpha == 1 else "add_multiple", (x, other), (), _scale(alpha))
    if alpha == 1:
        return _gated("add", x, other)
    shapes = f"{shape_of(x)} and {shape_of(other)} times {alpha}"
    raise UnsupportedCallError(f"add of {shapes} (it takes two maps of one shape)")


def sub(out: Shape, x: Any, other: Any, alpha: float = 1) -> Call:
    return add(out, x, other, -alpha)


def mul(out: Shape, x: Any, other: Any) -> Call:
    if not isinstance(x, Node):
        return _affine(other, x)
    if not isinstance(other, Node):
        return _affine(x, other)
    if call := _by_channel("scale_channels", x, other):
        return call
    if shape_of(x) == shape_of(other):
        return Call("multiply", (x, other))
    return _gated("mul", x, other)


def div(out: Shape, x: Any, other: Any) -> Call:
    if not isinstance(x, Node):
        return Call("reciprocal", (other,), (), {"a": float(x)})
    if isinstance(other, Node):
        raise UnsupportedCallError("div by a tensor (it takes a map and a number)")
    return _affine(x, 1 / other)


def neg(out: Shape, x: Node) -> Call:
    return _affine(x, -1)


def _by_channel(kind: str, x: Node, other: Node) -> Call | None:
    """The op of a map and a parameter of its channels, in either order; None of other nodes."""
    for maps, param in ((x, other), (other, x)):
        if param.op == "get_attr" and _is_by_channel(maps, shape_of(param)):
            return Call(kind, (maps,), (param,), axes=axes_of(maps))
    return None


def _is_by_channel(maps: Node, shape: Shape) -> bool:
    """Whether a parameter of this shape has a value for each channel of maps, and none besides."""
    channel = axes_of(maps).index(len(axes_of(maps)) - 1)
    wanted = [1] * len(axes_of(maps))
    wanted[channel] = shape_of(maps)[channel]
    ahead = len(wanted) - len(shape)
    return bool(shape) and ahead >= 0 and (*(1,) * ahead, *shape) == tuple(wanted)


def _affine(x: Node, scale: float, shift: float = 0) -> Call:
    return Call("affine", (x,), (), {"scale": float(scale), "shift": float(shift)})


def _scale(alpha: float) -> dict[str, float]:
    return {} if alpha == 1 else {"scale": float(alpha)}


def _gated(function: str, x: Node, other: Node) -> Call:
    """A map and one value a channel, in either order."""
    shapes = shape_of(x), shape_of(other)
    for maps, gates in ((x, other), (other, x)):
        shape = shape_of(maps)
        if len(shape) == 4 and shape_of(gates) == (*shape[:2], 1, 1):
            return Call("gate_multiply" if function == "mul" else "gate_add", (maps, gates))
    raise UnsupportedCallError(
        f"{function} of {shapes[0]} and {shapes[1]} (it takes two maps of one shape, or a map"
        " [N, C, H, W] and [N, C, 1, 1])"
    )

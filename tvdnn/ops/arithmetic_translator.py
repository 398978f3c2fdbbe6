"""Calls of sums, products and quotients: of maps, numbers, channels' parameters and gates."""

from itertools import pairwise
from math import prod
from typing import Any

from torch import Tensor
from torch.fx import Node

from ..graph.network import channels_last_axes
from .traced_op import (
    UNNAMED,
    PerSampleError,
    Shape,
    Source,
    TracedOp,
    UnsupportedCallError,
    axes_of,
    is_parameter,
    shape_of,
)

MOST_DIMENSIONS = 4  # of operands that broadcast


def add(out: Shape, x: Any, other: Any, alpha: float = 1) -> TracedOp:
    if not isinstance(x, Node):
        return affine(other, alpha, x)
    if not isinstance(other, Node):
        return affine(x, 1, alpha * other)
    if alpha == 1 and (call := _by_channel("channel_add", x, other)):
        return call
    if _are_alike(x, other):
        return TracedOp("add" if alpha == 1 else "add_multiple", (x, other), (), _scale(alpha))
    if alpha == 1 and (call := _channelwise("gate_add", x, other)):
        return call
    return broadcast("add", out, x, other, alpha)


def straight_through(out: Shape, before: Node, values: Node) -> TracedOp:
    return TracedOp("straight_through", (before, values))


def sub(out: Shape, x: Any, other: Any, alpha: float = 1) -> TracedOp:
    return add(out, x, other, -alpha)


def mul(out: Shape, x: Any, other: Any) -> TracedOp:
    if not isinstance(x, Node):
        return affine(other, x)
    if not isinstance(other, Node):
        return affine(x, other)
    if call := _by_channel("scale_channels", x, other):
        return call
    if _are_alike(x, other):
        return TracedOp("multiply", (x, other))
    return _channelwise("gate_multiply", x, other) or broadcast("multiply", out, x, other)


def div(out: Shape, x: Any, other: Any) -> TracedOp:
    if not isinstance(x, Node):
        return TracedOp("reciprocal", (other,), (), {"a": float(x)})
    if not isinstance(other, Node):
        return affine(x, 1 / other)
    return broadcast("divide", out, x, other)


def neg(out: Shape, x: Node) -> TracedOp:
    return affine(x, -1)


def broadcast(function: str, out: Shape, x: Node, other: Node, scale: float = 1) -> TracedOp:
    """The op of two maps, or of a map and a parameter or buffer, whose shapes broadcast."""
    maps = [each for each in (x, other) if each.op != "get_attr"]
    if not maps:
        raise UnsupportedCallError(f"{function} of parameters alone")
    orders = {axes_of(each) for each in maps if len(shape_of(each)) == len(out)}
    alike = len(orders) == 1  # other maps are rearranged to channels last
    axes = next(iter(orders)) if alike else channels_last_axes(len(out))
    if len(out) > MOST_DIMENSIONS and not _groups(out, maps, axes):
        shapes = f"{shape_of(x)} and {shape_of(other)}"
        why = "of at most 4 dimensions, or groups of them"
        raise UnsupportedCallError(f"{function} of {shapes} (it takes maps {why})")
    if any(shape_of(each)[:1] != out[:1] or len(shape_of(each)) != len(out) for each in maps):
        shapes = f"{shape_of(x)} and {shape_of(other)}"
        raise UnsupportedCallError(f"{function} of {shapes} (the first dimension is the batch)")
    attrs: dict[str, Any] = {"scale": float(scale)}
    kind = f"broadcast_{function}"
    if len(maps) == 2:
        return TracedOp(kind, (x, other), (), attrs, axes if alike else None)
    param = x if maps[0] is other else other
    _check_constant(function, param, out)
    stored = tuple(axes.index(axis) for axis in range(len(axes)))
    attrs |= {"param": int(param is other), "permutation": stored}
    attrs |= {"shape": shape_of(param), "by_row": _has_rows(param, stored)}
    attrs |= {"filters": _is_stored_as_filters(function, param)}
    params, state = _held(param)
    return TracedOp(kind, (maps[0],), params, attrs, axes, state)


def _groups(out: Shape, maps: list[Node], order: Shape) -> bool:
    """Whether two maps of many dimensions broadcast along three groups of neighbours at most."""
    if len(maps) < 2 or any(len(shape_of(each)) != len(out) for each in maps):
        return False
    dims = [order.index(axis) for axis in range(1, len(order))]
    kinds = [tuple(shape_of(each)[dim] == out[dim] for each in maps) for dim in dims]
    return sum(one != other for one, other in pairwise(kinds)) < 3


def _check_constant(function: str, param: Node, out: Shape) -> None:
    """Check that a parameter or buffer is of a floating-point type and the same for all samples."""
    if str(param.target).startswith(UNNAMED):
        raise UnsupportedCallError(
            f"{function} of a tensor that does not come from the inputs and is not a parameter or"
            " a buffer of the network (register it as a buffer)"
        )
    shape, dtype = shape_of(param), param.meta["value"].dtype
    if not dtype.is_floating_point:
        raise UnsupportedCallError(f"{function} of a map and a buffer of {dtype}")
    if len(shape) == len(out) and shape[0] != 1:
        raise PerSampleError(
            f"{function} of a map and a parameter of shape {shape} (the first dimension is the"
            " batch)"
        )


def _base(param: Node) -> Tensor:
    """The parameter or buffer of a node, whose value may be a view of it."""
    base: Tensor = param.meta.get("base", param.meta["value"])
    return base


def _is_stored_as_filters(function: str, param: Node) -> bool:
    """Whether a parameter's gradient is summed in the order of filters, [K, R, S, C/g]."""
    base = _base(param)
    if base.dim() != 4 or "base" not in param.meta:
        return base.dim() == 4
    _, channels, *taps = base.shape
    if channels > 1 and prod(taps) > 1:
        shapes = f"of shape {shape_of(param)} of a parameter of shape {tuple(base.shape)}"
        raise UnsupportedCallError(f"{function} of a map and a view {shapes}")
    return False


def _has_rows(param: Node, stored: Shape) -> bool:
    """Whether a parameter has a value for each row of the stored maps."""
    ahead = len(stored) - len(shape_of(param))
    dim = stored[1] - ahead if len(stored) > 2 else -1
    return dim >= 0 and shape_of(param)[dim] > 1


def _held(param: Node) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """A constant as the op's parameter, or as its state if it is a module's buffer."""
    named = not str(param.target).startswith(UNNAMED)
    is_buffer = named and not is_parameter(param)
    return ((), (param,)) if is_buffer else ((param,), ())


def _are_alike(x: Node, other: Node) -> bool:
    return shape_of(x) == shape_of(other) and "get_attr" not in (x.op, other.op)


def _by_channel(kind: str, x: Node, other: Node) -> TracedOp | None:
    """The op of a map and a parameter of its channels, in either order; None of other nodes."""
    for maps, param in ((x, other), (other, x)):
        constant = param.op == "get_attr" and maps.op != "get_attr"
        if constant and _is_by_channel(maps, param):
            params, state = _held(param)
            return TracedOp(kind, (maps,), params, axes=axes_of(maps), state=state)
    return None


def _is_by_channel(maps: Node, param: Node) -> bool:
    """Whether a parameter has one value for each channel of maps and nothing else."""
    dims, shape = len(axes_of(maps)), shape_of(param)
    if dims in (1, 3):  # [N] has no channels; sums and products of [N, C, L] broadcast
        return False
    wanted = [1] * dims
    channel = axes_of(maps).index(dims - 1)
    wanted[channel] = shape_of(maps)[channel]
    padded = (*(1,) * (dims - len(shape)), *shape)
    known = bool(shape) and param.meta["value"].is_floating_point()
    return known and padded == tuple(wanted)


def affine(x: Source, scale: float, shift: float = 0) -> TracedOp:
    return TracedOp("affine", (x,), (), {"scale": float(scale), "shift": float(shift)})


def _scale(alpha: float) -> dict[str, float]:
    return {} if alpha == 1 else {"scale": float(alpha)}


def _channelwise(kind: str, x: Node, other: Node) -> TracedOp | None:
    """The op of a map and one value a channel of every sample, in either order; None of others."""
    for maps, gates in ((x, other), (other, x)):
        shape = shape_of(maps)
        if len(shape) == 4 and shape_of(gates) == (*shape[:2], 1, 1) and gates.op != "get_attr":
            last = all(axes_of(each) == channels_last_axes(4) for each in (maps, gates))
            return TracedOp(kind, (maps, gates)) if last else None
    return None

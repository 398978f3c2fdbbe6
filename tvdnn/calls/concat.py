"""Calls that join maps along a dimension or take parts of them.

Channels that are the last axis are joined and taken as ranges of a map, others by copies.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from torch.fx import Node

from ..graph.network import channels_last_axes
from ..kernels.copy.remap import Axis
from .call import Call, Inner, Shape, Source, UnsupportedCallError, axes_of, call_of, shape_of
from .reduce_axes import one_of_several
from .remap import Taken, remapped
from .reshape import PLANE, in_order, reshape


def cat(out: Shape, tensors: Sequence[Source] | Node, dim: int = 0) -> Call:
    dim, tensors = dim % len(out), _parts(tensors)
    if len(tensors) == 1:
        return Call("view", tuple(tensors))
    if dim == 0:
        raise UnsupportedCallError(f"cat of {shape_of(tensors[0])} along the batch")
    orders = {axes_of(x) for x in tensors}
    if dim == 1 and len(out) in (2, 4) and orders == {channels_last_axes(len(out))}:
        return Call("concat", tuple(tensors))
    axes = axes_of(tensors[0])
    return _joined(out, [in_order(x, axes) for x in tensors], dim, axes)


def stack(out: Shape, tensors: Sequence[Source] | Node, dim: int = 0) -> Call:
    """Maps side by side in a new dimension, which is stored as the first behind the batch."""
    dim, tensors = dim % len(out), _parts(tensors)
    if dim == 0:
        raise UnsupportedCallError(f"stack of {shape_of(tensors[0])} along the batch")
    axes = axes_of(tensors[0])
    outer = [axis + 1 if axis else 0 for axis in axes]
    outer.insert(dim, 1)
    return _joined(out, [in_order(x, axes) for x in tensors], dim, tuple(outer))


def _parts(tensors: Sequence[Source] | Node) -> Sequence[Source]:
    """Tensors given one by one, or all those that one call yields."""
    if not isinstance(tensors, Node):
        return tensors
    found: list[Source] = []
    for index, part in enumerate(tensors.meta["value"]):
        call = _part_of_split(tuple(part.shape), tensors, index)
        assert call.axes is not None
        found.append(Inner(call, tuple(part.shape), call.axes))
    return found


def _joined(out: Shape, tensors: Sequence[Source], dim: int, axes: Shape) -> Call:
    """The op of a concatenation by copies; each tensor holds elements of axis `axes[dim]`."""
    stored = [out[axes.index(axis)] for axis in range(len(out))]
    after = prod(stored[axes[dim] + 1 :])
    row = prod(stored[1 : axes[dim]]) * after
    sizes = tuple(prod(shape_of(x)[1:]) // row for x in tensors)
    return Call("join", tuple(tensors), (), {"sizes": sizes, "after": after}, axes)


def split(out: Shape, x: Node, sizes: Any = None, dim: int = 0, **named_sizes: Any) -> None:
    """split and chunk by themselves are no ops: those who take the parts make them."""


def unbind(out: Shape, x: Node, dim: int = 0) -> None:
    """As `split`, of parts that lack the dimension."""


def narrow(out: Shape, x: Source, dim: int, start: int, length: int) -> Call:
    dim %= len(out)
    return _part(x, dim, int(start) % shape_of(x)[dim], length)


def select(out: Shape, x: Source, dim: int, index: int) -> Call:
    dim %= len(shape_of(x))
    return _element(x, dim, index % shape_of(x)[dim])


def getitem(out: Shape, x: Node, index: Any) -> Call:
    """Slices and numbers of a map, or a part that split, chunk or unbind makes."""
    if isinstance(x.meta["value"], (tuple, list)):
        return _part_of_split(out, x, index)
    source = shape_of(x)
    taken = _taken(source, index)
    numbers = {dim for dim, each in taken.items() if isinstance(each, int)}
    call = Call("view", (x,), axes=axes_of(x)) if not taken else _slices(x, taken, numbers)
    if not _adds_dimensions(index):
        return call
    ranges = {dim: each for dim, each in taken.items() if isinstance(each, range)}
    kept = [
        len(ranges[dim]) if dim in ranges else size
        for dim, size in enumerate(source)
        if dim not in numbers
    ]
    assert call.axes is not None
    return reshape(out, Inner(call, tuple(kept), call.axes))


def _slices(x: Source, taken: Mapping[int, range | int], numbers: set[int]) -> Call:
    """What slices and numbers take of a map."""
    if len(taken) == 1:
        ((dim, each),) = taken.items()
        if isinstance(each, int):
            return _element(x, dim, each)
        if each.step == 1:
            return _part(x, dim, each.start, len(each))
    elements = {
        dim: Taken(Axis(each.start, each.step), len(each))
        if isinstance(each, range)
        else Taken(Axis(each), 1)
        for dim, each in taken.items()
    }
    return remapped("a slice", x, elements, drop=numbers)


def _taken(shape: Shape, index: Any) -> dict[int, range | int]:
    """By dimension what an index takes, but of those that are taken whole."""
    taken: dict[int, range | int] = {}
    for dim, each in enumerate(_in_full(shape, index)):
        if isinstance(each, slice):
            within = range(shape[dim])[each]
            if within != range(shape[dim]):
                taken[dim] = within
        elif isinstance(each, int) and not isinstance(each, bool):
            taken[dim] = each % shape[dim]
        else:
            raise UnsupportedCallError(f"an index of {shape} by {type(each).__name__}")
    return taken


def _in_full(shape: Shape, index: Any) -> list[Any]:
    """What is taken of each dimension: `...` stands for as many whole ones as are missing."""
    given = [each for each in _as_tuple(index) if each is not None]
    at = next((place for place, each in enumerate(given) if each is ...), len(given))
    named = [each for each in given if each is not ...]
    return [*named[:at], *[slice(None)] * (len(shape) - len(named)), *named[at:]]


def _as_tuple(index: Any) -> tuple[Any, ...]:
    return tuple(index) if isinstance(index, (tuple, list)) else (index,)


def _adds_dimensions(index: Any) -> bool:
    return any(each is None for each in _as_tuple(index))


def attribute(out: Shape, x: Node, name: str) -> Call:
    """`values` of what max or min along a dimension yields."""
    if name != "values" or not isinstance(x.meta["value"], tuple):
        raise UnsupportedCallError(name)
    return _part_of_split(out, x, 0)


def _part_of_split(out: Shape, x: Node, index: int) -> Call:
    """One of the parts that split, chunk or unbind makes, or of the results of a reduction."""
    parts = x.meta["value"]
    function = getattr(x.target, "__name__", x.target)
    if function in ("max", "min", "var_mean", "std_mean"):
        return one_of_several(str(function), out, x, index)
    (source,) = x.all_input_nodes
    shape, number = shape_of(source), index % len(parts)
    dim = _split_dimension(x) % len(shape)
    if parts[0].dim() < len(shape):
        return _element(source, dim, number)
    start = sum(part.shape[dim] for part in parts[:number])
    return _part(source, dim, start, parts[number].shape[dim])


def _split_dimension(node: Node) -> int:
    """Along which dimension a call of split, chunk or unbind parts a map."""
    unbinds = getattr(node.target, "__name__", node.target) == "unbind"
    place = 1 if unbinds else 2
    dim: int = node.args[place] if len(node.args) > place else node.kwargs.get("dim", 0)  # type: ignore[assignment]
    return dim


def _element(x: Source, dim: int, number: int) -> Call:
    """One element along a dimension, which the result lacks."""
    if dim == 1 and axes_of(x) == channels_last_axes(4) and not _is_stored_otherwise(x):
        return Call("narrow", (x,), (), {"channels": (number, number + 1)}, axes=PLANE)
    return remapped("an index", x, {dim: Taken(Axis(number), 1)}, drop={dim})


def _part(x: Source, dim: int, start: int, length: int) -> Call:
    """A range of elements along a dimension."""
    shape, axes = shape_of(x), axes_of(x)
    if length == shape[dim]:
        return Call("view", (x,), axes=axes)
    last = dim == 1 and len(shape) in (2, 4) and axes == channels_last_axes(len(shape))
    if not last or _is_stored_otherwise(x) or length == 0:
        return remapped("a slice", x, {dim: Taken(Axis(start), length)})
    return Call("narrow", (x,), (), {"channels": (start, start + length)}, axes)


def _is_stored_otherwise(x: Source) -> bool:
    """Whether `x` is a view of values whose last axis is another than its own."""
    call = call_of(x)
    if call is None or call.kind != "view":
        return False
    (source,) = call.inputs
    return shape_of(source)[1] != shape_of(x)[1] or _is_stored_otherwise(source)

"""Concatenation and ranges of channels. A branch that lies elsewhere is copied to its range.

The gradients of branches are ranges of the concatenation's gradient.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from torch import Tensor
from torch.fx import Node

from ..graph import Op, Use
from ..graph.network import channels_last_axes
from ..kernels.copy.remap import Axis
from .builder import Builder
from .concat_views import ranges_of
from .gradient_sums import range_of_all
from .operator import STRIDED, Launch, Operator
from .reduce_axes import one_of_several, several
from .remap import Selection, remapped
from .reshape_translator import PLANE, in_order, reshape
from .row_tiles import tiles_by_pixel
from .traced_op import (
    Shape,
    Source,
    TracedOp,
    UnsupportedCallError,
    axes_of,
    inner,
    shape_of,
    views_of,
)


def cat(out: Shape, tensors: Sequence[Source] | Node, dim: int = 0) -> TracedOp:
    dim, tensors = dim % len(out), _parts(tensors)
    if len(tensors) == 1:
        return TracedOp("view", tuple(tensors))
    if dim == 0:
        raise UnsupportedCallError(f"cat of {shape_of(tensors[0])} along the batch")
    orders = {axes_of(x) for x in tensors}
    if dim == 1 and len(out) in (2, 4) and orders == {channels_last_axes(len(out))}:
        return TracedOp("concat", tuple(tensors))
    axes = axes_of(tensors[0])
    return _joined(out, [in_order(x, axes) for x in tensors], dim, axes)


def stack(out: Shape, tensors: Sequence[Source] | Node, dim: int = 0) -> TracedOp:
    """Maps side by side in a new dimension, which is stored as the first behind the batch."""
    dim, tensors = dim % len(out), _parts(tensors)
    if dim == 0:
        raise UnsupportedCallError(f"stack of {shape_of(tensors[0])} along the batch")
    axes = axes_of(tensors[0])
    outer = [axis + 1 if axis else 0 for axis in axes]
    outer.insert(dim, 1)
    return _joined(out, [in_order(x, axes) for x in tensors], dim, tuple(outer))


def _parts(tensors: Sequence[Source] | Node) -> Sequence[Source]:
    """The given tensors, or all results of one call."""
    if not isinstance(tensors, Node):
        return tensors
    shapes = [tuple(part.shape) for part in tensors.meta["value"]]
    return [inner(_part_of_split(out, tensors, at), out) for at, out in enumerate(shapes)]


def _joined(out: Shape, tensors: Sequence[Source], dim: int, axes: Shape) -> TracedOp:
    """The op of a concatenation by copies; each tensor holds elements of axis `axes[dim]`."""
    stored = [out[axes.index(axis)] for axis in range(len(out))]
    after = prod(stored[axes[dim] + 1 :])
    row = prod(stored[1 : axes[dim]]) * after
    sizes = tuple(prod(shape_of(x)[1:]) // row for x in tensors)
    return TracedOp("join", tuple(tensors), (), {"sizes": sizes, "after": after}, axes)


def narrow(out: Shape, x: Source, dim: int, start: int, length: int) -> TracedOp:
    dim %= len(out)
    return _part(x, dim, int(start) % shape_of(x)[dim], length)


def select(out: Shape, x: Source, dim: int, index: int) -> TracedOp:
    dim %= len(shape_of(x))
    return _element(x, dim, index % shape_of(x)[dim])


def getitem(out: Shape, x: Node, index: Any) -> TracedOp:
    """Slices and numbers of a map, or a part that split, chunk or unbind makes."""
    if isinstance(x.meta["value"], (tuple, list)):
        return _part_of_split(out, x, index)
    source = shape_of(x)
    picks, numbers = _picks(source, index)
    call = _slices(x, picks, numbers) if picks else TracedOp("view", (x,), axes=axes_of(x))
    if not _adds_dimensions(index):
        return call
    sizes = {dim: size for dim, size in enumerate(source) if dim not in numbers}
    return reshape(out, inner(call, [len(picks.get(dim, range(n))) for dim, n in sizes.items()]))


def _slices(x: Source, picks: Mapping[int, range], numbers: set[int]) -> TracedOp:
    """The op of slices and numbers of a map."""
    if len(picks) == 1:
        ((dim, each),) = picks.items()
        if numbers:
            return _element(x, dim, each.start)
        if each.step == 1:
            return _part(x, dim, each.start, len(each))
    axes = {dim: Axis(each.start, each.step) for dim, each in picks.items()}
    elements = {dim: Selection(axis, len(picks[dim])) for dim, axis in axes.items()}
    return remapped("a slice", x, elements, drop=numbers)


def _picks(shape: Shape, index: Any) -> tuple[dict[int, range], set[int]]:
    """By dimension the index, without whole dimensions, and the dimensions of numbers."""
    picks: dict[int, range] = {}
    numbers: set[int] = set()
    for dim, each in enumerate(_in_full(shape, index)):
        if isinstance(each, slice):
            within = range(shape[dim])[each]
            if within != range(shape[dim]):
                picks[dim] = within
        elif isinstance(each, int) and not isinstance(each, bool):
            numbers.add(dim)
            picks[dim] = range(each % shape[dim], each % shape[dim] + 1)
        else:
            raise UnsupportedCallError(f"an index of {shape} by {type(each).__name__}")
    return picks, numbers


def _in_full(shape: Shape, index: Any) -> list[Any]:
    """An index for every dimension: `...` stands for whole ones."""
    given = [each for each in _as_tuple(index) if each is not None]
    at = next((place for place, each in enumerate(given) if each is ...), len(given))
    named = [each for each in given if each is not ...]
    return [*named[:at], *[slice(None)] * (len(shape) - len(named)), *named[at:]]


def _as_tuple(index: Any) -> tuple[Any, ...]:
    return tuple(index) if isinstance(index, (tuple, list)) else (index,)


def _adds_dimensions(index: Any) -> bool:
    return any(each is None for each in _as_tuple(index))


def attribute(out: Shape, x: Node, name: str) -> TracedOp:
    """The `values` of max or min along a dimension."""
    if name != "values" or not isinstance(x.meta["value"], tuple):
        raise UnsupportedCallError(name)
    return _part_of_split(out, x, 0)


def _part_of_split(out: Shape, x: Node, index: int) -> TracedOp:
    """One of the parts that split, chunk or unbind makes, or of the results of a reduction."""
    parts = x.meta["value"]
    function = getattr(x.target, "__name__", x.target)
    if function in ("max", "min", "var_mean", "std_mean"):
        return one_of_several(str(function), out, x, index)
    source, *others = x.all_input_nodes
    if others or not isinstance(source.meta["value"], Tensor):
        raise UnsupportedCallError("an item of several results of a module")
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


def _element(x: Source, dim: int, number: int) -> TracedOp:
    """One element along a dimension, which is dropped."""
    if dim == 1 and axes_of(x) == channels_last_axes(4) and not _is_stored_otherwise(x):
        return TracedOp("narrow", (x,), (), {"channels": (number, number + 1)}, axes=PLANE)
    return remapped("an index", x, {dim: Selection(Axis(number), 1)}, drop={dim})


def _part(x: Source, dim: int, start: int, length: int) -> TracedOp:
    """A range of elements along a dimension."""
    shape, axes = shape_of(x), axes_of(x)
    if length == shape[dim]:
        return TracedOp("view", (x,), axes=axes)
    last = dim == 1 and len(shape) in (2, 4) and axes == channels_last_axes(len(shape))
    if not last or _is_stored_otherwise(x) or length == 0:
        return remapped("a slice", x, {dim: Selection(Axis(start), length)})
    return TracedOp("narrow", (x,), (), {"channels": (start, start + length)}, axes)


def _is_stored_otherwise(x: Source) -> bool:
    """Whether `x` is a view of values whose last axis is another than its own."""
    return any(shape_of(source)[1] != shape_of(view)[1] for view, source in views_of(x))


def concat_forward(b: Builder, op: Op) -> None:
    y = b.new_output(op)
    away = []
    for name, channels in zip(op.inputs, ranges_of(b.network, op), strict=True):
        source, target = (
            b.resolved(use) for use in (Use(b.buffer_of[name]), Use(y, channels=channels))
        )
        if target not in (source, *b.copied):
            away.append((source, target))
    if away:
        reads, writes = zip(*away, strict=True)
        b.add_pass(op, "forward", reads, writes)
        b.copied.update(writes)


def concat_backward(b: Builder, op: Op) -> None:
    """Give each branch its range of the gradient, or add that to ranges which they have."""
    dy, total = b.grad_of(op), range_of_all(b, op)
    if total is not None:
        b.add_pass(op, "add_grad", (total, Use(dy)), (total,))
        return
    for name, channels in zip(op.inputs, ranges_of(b.network, op), strict=True):
        if not b.needs_grad(name):
            continue
        if b.is_shared(dy):
            part = Use(dy, channels=channels)
            b.add_pass(op, "grad_input", (part,), (Use(b.new_grad(name)),))
        else:
            b.adopt_grad(name, b.add_range(dy, channels))


def narrow_forward(b: Builder, op: Op) -> None:
    x = Use(b.input_of(op), channels=op.attrs["channels"])
    y = Use(b.new_output(op))
    if b.resolved(x) != b.resolved(y):
        b.add_pass(op, "forward", (x,), (y,))


def narrow_backward(b: Builder, op: Op) -> None:
    """The gradient fills its range of one that others may fill elsewhere, if it does not yet."""
    value, channels, dy = op.inputs[0], op.attrs["channels"], b.resolved(Use(b.grad_of(op)))
    ranged = (dx for dx in b.gradient_terms.get(value, ()) if b.keeps_channels(dx))
    if any(b.resolved(Use(dx, channels=channels)) == dy for dx in ranged):
        return
    dx = b.grad_with_room(value, channels)
    b.add_pass(op, "grad_input", (Use(b.grad_of(op)),), (Use(dx, channels=channels),))


def run_copies(a: Launch) -> None:
    """Copy each read to the write of its place."""
    for src, dst in zip(a.reads, a.writes, strict=True):
        if src.is_contiguous():
            a.kernels.copy_channels(src.view_as(dst), dst)
        else:
            a.kernels.copy_channels(src, dst.view_as(src))


def run_zeros(a: Launch) -> None:
    """Clear the channels that nothing else writes."""
    for dst in a.writes:
        a.kernels.zero_channels(dst)


CONCAT = Operator(
    "concat",
    concat_forward,
    concat_backward,
    {"forward": run_copies, "grad_input": run_copies},
    copies_values={"forward", "grad_input"},
    strided=STRIDED,
    row_tiles=tiles_by_pixel,
    functions=dict.fromkeys(("cat", "concat", "concatenate"), cat),
)
NARROW = replace(
    CONCAT,
    kind="narrow",
    forward=narrow_forward,
    backward=narrow_backward,
    functions={
        **dict.fromkeys(("split", "chunk", "tensor_split", "unbind"), several),
        "narrow": narrow,
        "select": select,
        "operator.getitem": getitem,
        "builtins.getattr": attribute,
    },
)

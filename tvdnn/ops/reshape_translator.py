"""Calls that give maps another shape or another order of dimensions or channels."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from math import prod
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from ..functional import in_row
from ..graph.network import channels_last_axes
from ..kernels.copy.strided import MOST_DIMENSIONS
from ..kernels.reduce.axes import MOST_GROUPS
from .traced_op import (
    Inner,
    Shape,
    Source,
    TracedOp,
    UnsupportedCallError,
    axes_of,
    call_behind,
    inner,
    shape_of,
    views_of,
)

MAPS = channels_last_axes(4)
SIDES = ("kernel_size", "stride", "padding", "output_padding", "dilation", "output_size")
PLANE = (0, 1, 2)  # axes of [N, H, W], one channel of a map
TURNED = (0, 4, 3, 1, 2)  # axes of [N, channels, groups, H, W], stored channels last


class Factor(NamedTuple):
    """A factor of a sample's elements, in torch's order: part of one dimension of each shape."""

    source: int
    out: int
    size: int


def clone(out: Shape, x: Source, **memory_format: Any) -> TracedOp:
    """A value of its own, which operations in place do not share."""
    return TracedOp("view", (x,), axes=axes_of(x))


def reshape(out: Shape, x: Source, *args: Any, **kwargs: Any) -> TracedOp:
    """flatten, view, reshape and contiguous, by their effect: the target `out` says all.

    A view where the same bytes are that shape, else a copy in the order of maps.
    """
    source, axes = shape_of(x), axes_of(x)
    dtypes = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.dtype)]
    if any(each != torch.float32 for each in dtypes):
        raise UnsupportedCallError(f"view as {dtypes[0]} (use to)")
    if out == source:
        return TracedOp("view", (x,), axes=axes)
    if out[:1] != source[:1]:
        raise UnsupportedCallError(f"reshape of {source} to {out} (the batch must stay as it is)")
    maker = call_behind(x)
    one_channel = maker is not None and maker.kind == "narrow" and maker.axes == PLANE
    if maker is not None and one_channel and out == (source[0], 1, *source[1:]):
        return TracedOp("narrow", maker.inputs, (), maker.attrs, channels_last_axes(4))
    factors = _common_factors(source, out)
    if factors is None:
        return reshape(out, _in_torchs_order(x))
    held = sorted(range(len(factors)), key=lambda i: (axes[factors[i].source], i))
    wanted = channels_last_axes(len(out))
    if held == sorted(range(len(factors)), key=lambda i: (wanted[factors[i].out], i)):
        return TracedOp("view", (x,), axes=wanted)
    if (view_axes := _axes_of_view(out, factors, held)) is not None:
        return TracedOp("view", (x,), axes=view_axes)
    if len(out) == 2 and axes == channels_last_axes(4) and _has_own_shape(x):
        return TracedOp("flatten", (x,), axes=wanted)
    if axes == TURNED and out == (source[0], source[1] * source[2], *source[3:]):
        return TracedOp("shuffle_channels", (x,), (), {"groups": source[2]}, wanted)
    return _rearranged(x, factors, held, wanted)


def _has_own_shape(x: Source) -> bool:
    """Whether no view has given a value another shape than it is held in."""
    return all(_stored_shape(source) == _stored_shape(view) for view, source in views_of(x))


def _stored_shape(x: Source) -> Shape:
    shape, axes = shape_of(x), axes_of(x)
    return tuple(shape[axes.index(axis)] for axis in range(len(axes)))


def in_order(x: Source, axes: Shape) -> Source:
    """`x` with its dimensions stored where `axes` tell: itself, or a view or copy of it."""
    if axes_of(x) == axes:
        return x
    shape = shape_of(x)
    factors = [Factor(dim, dim, size) for dim, size in enumerate(shape) if dim and size > 1]
    held, wanted = (
        sorted(range(len(factors)), key=lambda i: order[factors[i].source])
        for order in (axes_of(x), axes)
    )
    if held == wanted:
        return inner(TracedOp("view", (x,), axes=axes), shape)
    return inner(_rearranged(x, factors, held, axes), shape)


def _common_factors(source: Shape, out: Shape) -> list[Factor] | None:
    """The common factors of the dimensions of both shapes, or None."""
    factors: list[Factor] = []
    dims = [[dim for dim, size in enumerate(shape) if dim and size > 1] for shape in (source, out)]
    places, left = [0, 0], [1, 1]
    while True:
        for side, shape in enumerate((source, out)):
            if left[side] == 1 and places[side] < len(dims[side]):
                left[side] = shape[dims[side][places[side]]]
                places[side] += 1
        if left == [1, 1]:
            return factors
        size = min(left)
        if max(left) % size:
            return None
        factors.append(Factor(dims[0][places[0] - 1], dims[1][places[1] - 1], size))
        left = [each // size for each in left]


def _axes_of_view(out: Shape, factors: Sequence[Factor], held: Sequence[int]) -> Shape | None:
    """Where the dimensions of a shape lie in bytes that hold its factors in this order.

    None where the factors of one dimension do not lie side by side.
    """
    dims = [factors[i].out for i in held]
    order = list(dict.fromkeys(dims))
    if list(held) != [i for dim in order for i in range(len(factors)) if factors[i].out == dim]:
        return None
    for dim in range(len(out)):
        if dim not in order:  # the batch is the first; dimensions of one follow those before them
            order.insert(order.index(dim - 1) + 1 if dim else 0, dim)
    return tuple(order.index(dim) for dim in range(len(out)))


def _in_torchs_order(x: Source) -> Inner:
    """The elements of each sample as torch counts them: [N, F]."""
    shape = shape_of(x)
    flat = (shape[0], prod(shape[1:]))
    call = reshape(flat, x)
    return Inner(call, flat, (0, 1))


def _rearranged(x: Source, factors: Sequence[Factor], held: Sequence[int], axes: Shape) -> TracedOp:
    """A copy of the factors that are `held` in one order, whose result is stored by `axes`."""
    wanted = sorted(range(len(factors)), key=lambda i: (axes[factors[i].out], i))
    order = tuple(held.index(i) for i in wanted)
    sizes = tuple(factors[i].size for i in held)
    apart = 1 + sum(after != before + 1 for before, after in pairwise(order))
    if apart + 1 > MOST_DIMENSIONS:
        raise UnsupportedCallError(
            f"a copy of {shape_of(x)} in another order of {apart} parts of its dimensions (it takes"
            f" up to {MOST_DIMENSIONS - 1})"
        )
    return TracedOp("rearrange", (x,), (), {"sizes": sizes, "order": order}, axes)


def as_rows(x: Source) -> Inner:
    """[N, C, L] as maps of one row, [N, C, 1, L]."""
    samples, channels, length = shape_of(x)
    out = (samples, channels, 1, length)
    maker = call_behind(x)
    if maker is not None and maker.kind == "view" and axes_of(x) == channels_last_axes(3):
        (made,) = maker.inputs
        if isinstance(made, Inner) and (made.shape, made.axes) == (out, MAPS):
            return made  # which a call before this one has made
    return Inner(TracedOp("view", (in_order(x, channels_last_axes(3)),), axes=MAPS), out, MAPS)


def rows_as_maps(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of rows by torch's names, as those of maps of one row."""
    sides = {
        name: in_row(value, 0 if "padding" in name else 1)
        for name, value in settings.items()
        if name in SIDES and not isinstance(value, str)
    }
    return {**settings, **sides}


def by_map(out: Shape, call: TracedOp) -> TracedOp:
    """The call on maps as they are, and on [N, C, L] as maps of one row."""
    if len(out) != 3:
        return call
    return of_rows(out, replace(call, inputs=tuple(map(as_rows, call.inputs))))


def of_rows(out: Shape, call: TracedOp) -> TracedOp:
    """The call's result on maps of one row, as [N, C, L]."""
    made = Inner(call, (*out[:2], 1, out[2]), MAPS)
    return TracedOp("view", (made,), axes=channels_last_axes(3))


def by_last(out: Shape, x: Source, call: TracedOp) -> TracedOp:
    """The call, whose channels are the last dimension of `x`: [N, ..., C].

    It reads `x` as it is if that is stored so, else maps of one row.
    """
    if len(out) in (2, 4) and axes_of(x)[-1] == len(out) - 1:
        return replace(call, inputs=(x,), axes=axes_of(x))
    samples, *places, channels = shape_of(x)
    stored = in_order(x, tuple(range(len(out))))
    rows = Inner(TracedOp("view", (stored,), axes=MAPS), (samples, channels, 1, prod(places)), MAPS)
    by_row = replace(call, inputs=(rows,), axes=MAPS)
    made = Inner(by_row, (samples, out[-1], 1, prod(places)), MAPS)
    return TracedOp("view", (made,), axes=tuple(range(len(out))))


def channel_shuffle(out: Shape, x: Node, groups: int) -> TracedOp:
    if len(out) != 4:
        raise UnsupportedCallError(f"channel_shuffle of {len(out)} dimensions (it takes maps)")
    return TracedOp("shuffle_channels", (x,), (), {"groups": groups})


def pixel_shuffle(out: Shape, x: Source, upscale_factor: int) -> TracedOp:
    samples, channels, height, width = _map_of("pixel_shuffle", x)
    r = upscale_factor
    parts = (samples, channels // r**2, r, r, height, width)
    return _reordered_parts(out, x, parts, (0, 1, 4, 2, 5, 3))


def pixel_unshuffle(out: Shape, x: Source, downscale_factor: int) -> TracedOp:
    samples, channels, height, width = _map_of("pixel_unshuffle", x)
    r = downscale_factor
    parts = (samples, channels, height // r, r, width // r, r)
    return _reordered_parts(out, x, parts, (0, 1, 3, 5, 2, 4))


def _map_of(name: str, x: Source) -> Shape:
    if len(shape_of(x)) != 4:
        raise UnsupportedCallError(f"{name} of {len(shape_of(x))} dimensions (it takes maps)")
    return shape_of(x)


def _reordered_parts(out: Shape, x: Source, parts: Shape, order: Sequence[int]) -> TracedOp:
    """`x` in the shape `parts`, these in another order, and then in the shape `out`."""
    viewed = inner(reshape(parts, x), parts)
    return reshape(out, inner(_reordered(viewed, order), [parts[dim] for dim in order]))


def copy_(out: Shape, x: Source, source: Source, non_blocking: bool = False) -> TracedOp:
    """A tensor written over whole by `source`."""
    if not isinstance(source, Node) or shape_of(source) != out:
        found = shape_of(source) if isinstance(source, Node) else source
        raise UnsupportedCallError(f"copy_ of {found} to {out} (it takes a map of one shape)")
    return TracedOp("view", (source,), axes=axes_of(source))


def permute(out: Shape, x: Source, *dims: Any, **named: Any) -> TracedOp:
    """The same bytes under another order of dimensions."""
    (order,) = named.values() if named else ((dims[0] if len(dims) == 1 else dims),)
    return _reordered(x, [dim % len(out) for dim in order])


def transpose(out: Shape, x: Source, dim0: int, dim1: int) -> TracedOp:
    order = list(range(len(out)))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return _reordered(x, order)


def movedim(out: Shape, x: Source, source: Any, destination: Any) -> TracedOp:
    ends = [[each] if isinstance(each, int) else list(each) for each in (source, destination)]
    moved, places = ([dim % len(out) for dim in end] for end in ends)
    order = [dim for dim in range(len(out)) if dim not in moved]
    for place, dim in sorted(zip(places, moved, strict=True)):
        order.insert(place, dim)
    return _reordered(x, order)


def _reordered(x: Source, order: Sequence[int]) -> TracedOp:
    if order[0] != 0:
        raise UnsupportedCallError("permute of the batch (it must stay the first dimension)")
    return TracedOp("view", (x,), axes=tuple(axes_of(x)[dim] for dim in order))


def without(axes: Shape, dims: Collection[int]) -> Shape:
    """The axes of the other dimensions, counted anew."""
    left = [axis for dim, axis in enumerate(axes) if dim not in dims]
    return tuple(sorted(left).index(axis) for axis in left)


def kept_first(axes: Shape, dims: Collection[int]) -> Shape:
    """The axes of an order in which some dimensions are stored behind all others."""
    stored = sorted(range(len(axes)), key=lambda dim: (dim in dims, axes[dim]))
    return tuple(stored.index(dim) for dim in range(len(axes)))


def groups_of(shape: Shape, axes: Shape, dims: Collection[int]) -> dict[str, Any] | None:
    """Sizes of neighbouring axes that are all in `dims`, or none of them; None of too many."""
    stored = [(shape[axes.index(axis)], axes.index(axis) in dims) for axis in range(1, len(axes))]
    groups = [
        (prod(size for size, _ in group), flag)
        for flag, group in groupby(
            (each for each in stored if each[0] > 1), key=lambda each: each[1]
        )
    ]
    if not any(flag for _, flag in groups):
        groups.append((1, True))
    if max(sum(flag is kind for _, flag in groups) for kind in (False, True)) > MOST_GROUPS:
        return None
    sizes, reduced = zip(*groups, strict=True)
    return {"sizes": sizes, "reduced": reduced}

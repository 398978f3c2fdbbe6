"""Calls that give maps another shape or another order of dimensions or channels."""

import math
from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from ..graph.network import channels_last_axes
from .call import Call, Shape, UnsupportedCallError, axes_of, shape_of

GROUPED = (0, 3, 4, 1, 2)  # axes of [N, groups, channels, H, W], stored channels last
TURNED = (0, 4, 3, 1, 2)  # of [N, channels, groups, H, W], stored alike


def reshape(out: Shape, x: Node, *args: Any, **kwargs: Any) -> Call:
    """flatten, view, reshape and contiguous, by their effect: the target `out` says all."""
    source = shape_of(x)
    flattens = out == (source[0], math.prod(source[1:]))
    if out == source:
        return Call("view", (x,))
    if flattens and axes_of(x) == tuple(range(len(source))):
        return Call("view", (x,), axes=(0, 1))
    if out[0] == source[0] and _is_channel_major(out) and _is_channel_major(source):
        return Call("view", (x,), axes=channels_last_axes(len(out)))
    plane = x.meta["call"]
    if plane is not None and plane.kind == "narrow" and out == (source[0], 1, *source[1:]):
        return Call("narrow", plane.inputs, (), plane.attrs)  # x[:, i].unsqueeze(1)
    if flattens:
        return Call("flatten", (x,))
    if out[:2] == source[:2] and axes_of(x) == channels_last_axes(len(source)):
        return Call("view", (x,), axes=channels_last_axes(len(out)))  # pixels counted otherwise
    if (call := _regrouped(out, x)) is not None:
        return call
    raise UnsupportedCallError(
        f"reshape of {source} to {out} (it may flatten all but the batch, or the pixels, or split"
        " channels into groups and join them again)"
    )


def channel_shuffle(out: Shape, x: Node, groups: int) -> Call:
    if len(out) != 4:
        raise UnsupportedCallError(f"channel_shuffle of {len(out)} dimensions (it takes maps)")
    return Call("shuffle_channels", (x,), (), {"groups": groups})


def _regrouped(out: Shape, x: Node) -> Call | None:
    """Channels split into groups; or groups joined, whose dimensions may have changed places."""
    source, axes = shape_of(x), axes_of(x)
    if (len(source), len(out)) == (4, 5) and axes == channels_last_axes(4):
        splits = (out[0], out[1] * out[2], *out[3:]) == source
        return Call("view", (x,), axes=GROUPED) if splits else None
    if (len(source), len(out)) != (5, 4) or out != (source[0], source[1] * source[2], *source[3:]):
        return None
    if axes == GROUPED:
        return Call("view", (x,), axes=channels_last_axes(4))
    if axes == TURNED:
        settings = {"groups": source[2]}
        return Call("shuffle_channels", (x,), (), settings, channels_last_axes(4))
    return None


def permute(out: Shape, x: Node, *dims: Any, **named: Any) -> Call:
    """The same bytes under another order of dimensions."""
    (order,) = named.values() if named else ((dims[0] if len(dims) == 1 else dims),)
    return _reordered(x, [dim % len(out) for dim in order])


def transpose(out: Shape, x: Node, dim0: int, dim1: int) -> Call:
    order = list(range(len(out)))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return _reordered(x, order)


def _reordered(x: Node, order: Sequence[int]) -> Call:
    if order[0] != 0:
        raise UnsupportedCallError("permute of the batch (it must stay the first dimension)")
    return Call("view", (x,), axes=tuple(axes_of(x)[dim] for dim in order))


def _is_channel_major(shape: Shape) -> bool:
    """Whether a sample's bytes are the same channels first and channels last."""
    sides = shape[2:]
    return all(side == 1 for side in sides) or (len(sides) == 2 and shape[1] == 1)

"""Calls that join maps along their channels or take a range of these."""

from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from ..graph.network import channels_last_axes
from .call import Call, Shape, UnsupportedCallError, axes_of, shape_of


def cat(out: Shape, tensors: Sequence[Node], dim: int = 0) -> Call:
    _check_channels(out, dim)
    return Call("view" if len(tensors) == 1 else "concat", tuple(tensors))


def split(out: Shape, x: Node, sizes: Any = None, dim: int = 0, **named_sizes: Any) -> None:
    """split and chunk by themselves are no ops: those who take the parts make them."""
    _check_channels(shape_of(x), dim)


def narrow(out: Shape, x: Node, dim: int, start: int, length: int) -> Call:
    _check_channels(out, dim)
    return _channels(x, start % shape_of(x)[1], length)


def getitem(out: Shape, x: Node, index: Any) -> Call:
    """A range of channels by slices, one by its number, or a part that split or chunk makes."""
    parts = x.meta["value"]
    if isinstance(parts, tuple):
        (source,) = x.all_input_nodes
        before = parts[: index % len(parts)]
        return _channels(source, sum(part.shape[1] for part in before), out[1])
    if len(shape_of(x)) == 4 and _is_number(index):
        return _one_channel(x, index[1] % shape_of(x)[1])
    return _channels(x, _first_channel(out, shape_of(x), index), out[1])


def _is_number(index: Any) -> bool:
    """Whether x[:, i] is asked for."""
    pair = isinstance(index, tuple) and len(index) == 2 and index[0] == slice(None)
    return pair and isinstance(index[1], int) and not isinstance(index[1], bool)


def _one_channel(x: Node, channel: int) -> Call:
    """The pixels [N, H, W] of one channel."""
    if axes_of(x) != channels_last_axes(4) or _is_stored_otherwise(x):
        raise UnsupportedCallError(f"a channel of {shape_of(x)}, maps that are permuted or viewed")
    return Call("narrow", (x,), (), {"channels": (channel, channel + 1)}, axes=(0, 1, 2))


def _first_channel(out: Shape, source: Shape, index: Any) -> int:
    """Where the slices `index` of a map begin, if channels are all that they leave out."""
    slices = index if isinstance(index, tuple) else (index,)
    plain = all(isinstance(each, slice) and each.step in (None, 1) for each in slices)
    if not plain or (out[0], *out[2:]) != (source[0], *source[2:]) or len(source) not in (2, 4):
        raise UnsupportedCallError(
            f"a slice of {source} that gives {out} (it takes channels, x[:, a:b])"
        )
    return int(slices[1].indices(source[1])[0]) if len(slices) > 1 else 0


def _channels(x: Node, start: int, length: int) -> Call:
    """A range of the channels of `x`."""
    if length == shape_of(x)[1]:
        return Call("view", (x,))
    if _is_stored_otherwise(x):
        raise UnsupportedCallError(f"a range of {shape_of(x)}, the pixels of maps of one channel")
    return Call("narrow", (x,), (), {"channels": (start, start + length)})


def _is_stored_otherwise(x: Node) -> bool:
    """Whether `x` is a view of values whose last axis is another than its own."""
    call = x.meta["call"]
    if call is None or call.kind != "view":
        return False
    (source,) = call.inputs
    return shape_of(source)[1] != shape_of(x)[1] or _is_stored_otherwise(source)


def _check_channels(shape: Shape, dim: int) -> None:
    if len(shape) not in (2, 4) or dim not in (1, 1 - len(shape)):
        raise UnsupportedCallError(
            f"cat, split or narrow of {len(shape)} dimensions along {dim} (channels are 1)"
        )

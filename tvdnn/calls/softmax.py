"""Calls of softmax and log_softmax over channels."""

from typing import Any

from torch.fx import Node

from ..kernels.softmax import MOST_CHANNELS
from .call import Call, Shape, UnsupportedCallError, axes_of, shape_of


def softmax(
    out: Shape, x: Node, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Call:
    return _over_channels("softmax", x, dim, dtype)


def log_softmax(
    out: Shape, x: Node, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Call:
    return _over_channels("log_softmax", x, dim, dtype)


def _over_channels(function: str, x: Node, dim: int | None, dtype: Any) -> Call:
    shape, axes = shape_of(x), axes_of(x)
    if dim is None or axes[dim] != len(shape) - 1 or shape[dim] > MOST_CHANNELS or dtype:
        raise UnsupportedCallError(
            f"{function} of {shape} over {dim} (it takes channels, up to {MOST_CHANNELS})"
        )
    return Call(function, (x,), (), {"channels": shape[dim]}, axes)

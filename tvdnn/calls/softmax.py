"""Calls of softmax and log_softmax over any dimension but the batch."""

from typing import Any

import torch

from ..kernels.pointwise.softmax import MOST_CHANNELS
from .call import Call, Inner, Shape, Source, UnsupportedCallError, axes_of, shape_of
from .reshape import in_order, kept_first


def softmax(
    out: Shape, x: Source, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Call:
    return _over("softmax", x, dim, dtype)


def log_softmax(
    out: Shape, x: Source, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Call:
    return _over("log_softmax", x, dim, dtype)


def _over(function: str, x: Source, dim: int | None, dtype: Any) -> Call:
    """The op over the last axis; where that is another dimension, between copies."""
    shape, axes = shape_of(x), axes_of(x)
    plain = dim is not None and dim % len(shape) and dtype in (None, torch.float32)
    if dim is None or not plain or shape[dim] > MOST_CHANNELS:
        raise UnsupportedCallError(
            f"{function} of {shape} over {dim} (it takes a dimension other than the batch, up to"
            f" {MOST_CHANNELS} elements)"
        )
    attrs = {"channels": shape[dim]}
    if axes[dim] == len(shape) - 1:
        return Call(function, (x,), (), attrs, axes)
    order = kept_first(axes, {dim % len(shape)})
    call = Call(function, (in_order(x, order),), (), attrs, order)
    back = in_order(Inner(call, shape, order), axes)
    assert isinstance(back, Inner)
    return back.call

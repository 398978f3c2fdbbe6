"""Shapes of results, as torch's own functions tell them of tensors without bytes."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor

from ..functional import on_meta

KNOWN: Final = 4096  # results of other shapes or arguments
Shape = tuple[int, ...]


def shape_only(x: Tensor) -> Tensor:
    """A tensor of the shape and type of `x` on the meta device, to ask torch for result shapes."""
    return torch.empty(x.shape, dtype=x.dtype, device="meta")


def result_shape(function: Callable[..., Tensor], shapes: tuple[Shape, ...], *given: Any) -> Shape:
    """[N, H, W, C] of what torch's function makes of tensors of these shapes and of `given`.

    The function also checks the arguments.
    """
    return _known(function, shapes, *[tuple(x) if isinstance(x, list) else x for x in given])


@lru_cache(maxsize=KNOWN)
def _known(function: Callable[..., Tensor], shapes: tuple[Shape, ...], *given: Any) -> Shape:
    tensors = [torch.empty(shape, device="meta") for shape in shapes]
    samples, channels, *sides = on_meta(function, *tensors, *given).shape
    return samples, *sides, channels

"""Copies into ranges of channels, and zeros there."""

from typing import Final

import torch

from bench.cases.case import BY_TYPE, TYPES, KernelCase, at, over
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, Operands, Shape
from tvdnn.kernels.copy.channels import copy_channels, zero_channels


def _copy(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    """Into the second quarter of a wider map."""
    x = o.randn(*size, dtype=dtype)
    return launching(copy_channels, x, o.out(*size, dtype=dtype, beside=_beside(size)))


def _zero(o: Operands, size: Shape, dtype: torch.dtype = BF16) -> Launch:
    return launching(zero_channels, o.out(*size, dtype=dtype, beside=_beside(size)))


def _beside(size: Shape) -> Shape:
    return (size[-1], 2 * size[-1])


COMPILED: Final = at([(2, 28, 28, size) for size in (29, 32, 58, 256)], over(dtype=TYPES))
CASES = (
    KernelCase(copy_channels, _copy, BY_TYPE, COMPILED),
    KernelCase(zero_channels, _zero, BY_TYPE, COMPILED),
)

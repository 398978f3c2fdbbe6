"""Copies between views of any strides."""

from typing import Any

import torch

from bench.cases.case import TYPES, At, KernelCase, checked
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, Operands, Shape
from tvdnn.kernels.copy.strided import copy_strided


def _copy(
    o: Operands, size: Shape, dtype: torch.dtype = BF16, gathers: bool = True, **settings: Any
) -> Launch:
    """Quarters of the channels side by side, as pixel shuffling lays them; or back."""
    samples, height, width, channels = size
    apart = (samples, height, width, channels, 2, 2)
    shuffled = (samples, height, 2, width, 2, channels)
    if gathers:
        source = o.randn(*apart, dtype=dtype).permute(0, 1, 4, 2, 5, 3)
        return launching(copy_strided, source, o.out(*shuffled, dtype=dtype), **settings)
    source, target = o.randn(*shuffled, dtype=dtype), o.out(*apart, dtype=dtype)
    return launching(copy_strided, source, target.permute(0, 1, 4, 2, 5, 3), **settings)


def _one(o: Operands, size: Shape) -> Launch:
    return launching(copy_strided, o.randn(*size), o.out(*size))


CASES = (
    KernelCase(
        copy_strided,
        _copy,
        checked(gathers=[True, False], dtype=TYPES),
        (
            At((2, 14, 14, 16), {"precision": "tf32"}),
            At((2, 14, 14, 16), {"gathers": False}),
        ),
    ),
    KernelCase(copy_strided, _one, compiled=[At((1, 1, 1, 1))]),
)

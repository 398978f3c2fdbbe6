"""Hardshrink, forward and backward."""

from typing import Any

import torch

from bench.cases.case import BY_TYPE, KINDS, KernelCase, at
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, Operands, Shape
from tvdnn.kernels.pointwise.hardshrink import hardshrink


def _hardshrink(o: Operands, size: Shape, dtype: torch.dtype = BF16, **settings: Any) -> Launch:
    x, values = (o.randn(*size, dtype=dtype) for _ in range(2))
    return launching(hardshrink, x, values, o.out(*size, dtype=dtype), bound=0.5, **settings)


CASES = (KernelCase(hardshrink, _hardshrink, BY_TYPE, at([(2, 9, 9, 64), (1, 1)], KINDS)),)

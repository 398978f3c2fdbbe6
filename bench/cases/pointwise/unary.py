"""Functions of one operand, and their gradients."""

from typing import Any

import torch

from bench.cases.case import KINDS, TYPES, At, KernelCase, at, checked, over
from bench.cases.launch import Launch, launching
from bench.cases.operands import BF16, F32, Operands, Shape
from tvdnn.kernels.pointwise.unary import FUNCTIONS, unary, unary_grad

OF = {"a": 0.5, "b": 2.0}


def _unary(
    o: Operands, size: Shape, dtype: torch.dtype = BF16, beside: Shape = (), **settings: Any
) -> Launch:
    """Values are at least 0.1, where every function is defined."""
    x, y = o.randn(*size, dtype=dtype), o.out(*size, dtype=dtype, beside=beside)
    return launching(unary, x.abs_().add_(0.1), y, **OF | settings)


def _unary_grad(
    o: Operands, size: Shape, dtype: torch.dtype = BF16, beside: Shape = (), **settings: Any
) -> Launch:
    x, dy = o.randn(*size, dtype=dtype, beside=beside), o.randn(*size, dtype=dtype)
    dx = o.out(*size, dtype=dtype, beside=beside)
    return launching(unary_grad, x.abs_().add_(0.1), dy, dx, **OF | settings)


MAPS, ONE = (2, 9, 9, 64), (1, 1, 1, 1)
COMPILED = at([MAPS], over(KINDS, function=FUNCTIONS, beside=[(), (32, 64)]))
POWER = At(ONE, {"dtype": F32, "function": "pow", "a": 1, "b": 0.0})
SOFTPLUS = At(ONE, {"dtype": F32, "function": "softplus", "a": 1, "b": 1})
BY_FUNCTION = checked(function=FUNCTIONS, dtype=TYPES)
CASES = (
    KernelCase(unary, _unary, BY_FUNCTION, (*COMPILED, POWER)),
    KernelCase(unary_grad, _unary_grad, BY_FUNCTION, (*COMPILED, SOFTPLUS)),
)

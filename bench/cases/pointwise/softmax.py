"""Softmax of rows and its logarithm, and the gradients."""

from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from bench.cases.case import KINDS, TYPES, At, KernelCase, Measured, at, checked, over
from bench.cases.launch import Launch, launching, per_sample
from bench.cases.operands import BF16, F32, Operands, Shape
from tvdnn.kernels.pointwise.softmax import FUNCTIONS, softmax, softmax_grad

PIXELS: Final = (64, 256, 256, 21)


def _softmax(o: Operands, size: Shape, dtype: torch.dtype = BF16, **settings: Any) -> Launch:
    x, y = o.randn(*size, dtype=dtype), o.out(*size, dtype=dtype)
    settings = {"function": "softmax", **settings}

    def shares(maps: Tensor) -> Tensor:
        return functional.softmax(maps, -1)

    rows = (x.flatten(0, -2), y.flatten(0, -2))
    return launching(softmax, *rows, peer=per_sample(lambda: y, shares, x), **settings)


def _softmax_grad(o: Operands, size: Shape, dtype: torch.dtype = BF16, **settings: Any) -> Launch:
    """The gradient from outputs, which are shares or logarithms of shares."""
    y, dy = (o.randn(*size, dtype=dtype).flatten(0, -2) for _ in range(2))
    settings = {"function": "log_softmax", **settings}
    y.copy_(getattr(functional, settings["function"])(y.float(), -1))
    return launching(softmax_grad, y, dy, o.out(*y.shape, dtype=dtype), **settings)


ROWS, ONE = [(784, 21), (784, 16384)], (1, 1)
COMPILED = (*at(ROWS, over(KINDS, function=FUNCTIONS)), At(ONE, {"dtype": F32}))
BY_FUNCTION = checked(function=FUNCTIONS, dtype=TYPES)
BY_INPUT = {"dtype": [F32], "function": FUNCTIONS, "by_input": [True]}
CASES = (
    KernelCase(softmax, _softmax, BY_FUNCTION, COMPILED, [Measured("softmax", PIXELS)]),
    KernelCase(
        softmax_grad,
        _softmax_grad,
        BY_FUNCTION | checked(**BY_INPUT),
        (*COMPILED, *at(ROWS, over(**BY_INPUT))),
    ),
)

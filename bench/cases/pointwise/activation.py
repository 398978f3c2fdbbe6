"""ReLU and the other activations, and their gradients."""

from typing import Any

import torch
from torch import Tensor

from bench.cases.case import BY_TYPE, KINDS, TYPES, KernelCase, Measured, at, checked, over
from bench.cases.launch import Launch, launching, per_sample
from bench.cases.operands import BF16, F32, Operands, Shape
from bench.cases.shapes import VGG16_MAP
from tvdnn.kernels.pointwise.activation import (
    BY_EXACT_OUTPUT,
    FUNCTIONS,
    activate,
    activate_grad,
    relu,
    relu_grad,
)


def _relu(o: Operands, size: Shape, dtype: torch.dtype = BF16, beside: Shape = ()) -> Launch:
    x, y = o.randn(*size, dtype=dtype), o.out(*size, dtype=dtype, beside=beside)
    return launching(relu, x, y, peer=per_sample(lambda: y, torch.relu, x))


def _relu_grad(o: Operands, size: Shape, dtype: torch.dtype = BF16, beside: Shape = ()) -> Launch:
    y, dy = o.randn(*size, dtype=dtype, beside=beside), o.randn(*size, dtype=dtype)
    dx = o.out(*size, dtype=dtype, beside=beside)
    peer = per_sample(lambda: dx, _torch_relu_grad, dy, y)
    return launching(relu_grad, y, dy, dx, peer=peer)


def _torch_relu_grad(dy: Tensor, y: Tensor) -> Tensor:
    result: Tensor = torch.ops.aten.threshold_backward(dy, y, 0)
    return result


def _activate(o: Operands, size: Shape, dtype: torch.dtype = BF16, **settings: Any) -> Launch:
    x, y = o.randn(*size, dtype=dtype), o.out(*size, dtype=dtype)
    return launching(activate, x, y, **{"coefficient": 0.1, **settings})


def _activate_grad(o: Operands, size: Shape, dtype: torch.dtype = BF16, **settings: Any) -> Launch:
    values, dy = (o.randn(*size, dtype=dtype) for _ in range(2))
    dx = o.out(*size, dtype=dtype)
    return launching(activate_grad, values, dy, dx, **{"coefficient": 0.1, **settings})


MAPS, ONE = (2, 9, 9, 64), (1, 1, 1, 1)
RELUS = (*at([MAPS], over(beside=[(), (32, 64)])), *at([ONE], over(dtype=[F32])))
OTHERS = (
    *at([MAPS], over(KINDS, function=FUNCTIONS)),
    *at([ONE], over(dtype=[F32], function=["elu"], coefficient=[1])),
)
BY_FUNCTION = checked(function=FUNCTIONS, dtype=TYPES)
BY_INPUT = {"dtype": [F32], "function": BY_EXACT_OUTPUT, "by_input": [True]}
CASES = (
    KernelCase(relu, _relu, BY_TYPE, RELUS, [Measured("relu", VGG16_MAP)]),
    KernelCase(relu_grad, _relu_grad, BY_TYPE, RELUS, [Measured("relu_grad", VGG16_MAP)]),
    KernelCase(activate, _activate, BY_FUNCTION, OTHERS),
    KernelCase(
        activate_grad,
        _activate_grad,
        BY_FUNCTION | checked(**BY_INPUT),
        (*OTHERS, *at([MAPS], over(**BY_INPUT))),
    ),
)

"""Launches of activation.py to compile."""

from functools import partial

import torch

from tests.support.offline import Case
from tvdnn.kernels.pointwise.activation import FUNCTIONS, activate, activate_grad, relu, relu_grad


def _relu() -> None:
    x = torch.empty(2, 9, 9, 64, dtype=torch.bfloat16, device="meta")
    relu(x, x)
    relu_grad(x, x, x)
    part = torch.empty(2, 9, 9, 160, dtype=torch.bfloat16, device="meta")[..., 32:96]
    relu(x, part)
    relu_grad(part, x, part)


def _activate(function: str) -> None:
    for dtype, precision in ((torch.bfloat16, "ieee"), (torch.float32, "tf32")):
        x = torch.empty(2, 9, 9, 64, dtype=dtype, device="meta")
        activate(x, x, function=function, coefficient=0.1, precision=precision)
        activate_grad(x, x, x, function=function, coefficient=0.1, precision=precision)


CASES = [
    Case("relu and its gradient", _relu),
    *(Case(f"{name} and its gradient", partial(_activate, name)) for name in FUNCTIONS),
]

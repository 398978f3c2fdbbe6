"""Launches of activation.py to compile."""

import torch
from tvdnn.kernels.activation import relu, relu_grad

from tests.offline import Case


def _relu() -> None:
    x = torch.empty(2, 9, 9, 64, dtype=torch.bfloat16, device="meta")
    relu(x, x)
    relu_grad(x, x, x)


CASES = [Case("relu and its gradient", _relu)]

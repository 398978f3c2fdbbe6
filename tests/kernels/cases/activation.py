"""Launches of activation.py to compile."""

import torch

from tests.offline import Case
from tvdnn.kernels.activation import relu, relu_grad


def _relu() -> None:
    x = torch.empty(2, 9, 9, 64, dtype=torch.bfloat16, device="meta")
    relu(x, x)
    relu_grad(x, x, x)


CASES = [Case("relu and its gradient", _relu)]

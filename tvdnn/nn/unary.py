"""Mish, Softplus and other elementwise layers with up to two numbers, over the kernels."""

import torch
from torch import Tensor

from .activation import Elementwise, activate
from .eager import torchs_own


class Mish(Elementwise, torch.nn.Mish):
    """torch.nn.Mish, run by tvdnn's kernels."""

    kind = "mish"


class Softplus(Elementwise, torch.nn.Softplus):
    """torch.nn.Softplus, run by tvdnn's kernels."""

    kind = "softplus"
    numbers = (("a", "beta"), ("b", "threshold"))


class CELU(Elementwise, torch.nn.CELU):
    """torch.nn.CELU, run by tvdnn's kernels."""

    kind = "celu"
    numbers = (("a", "alpha"),)


class SELU(Elementwise, torch.nn.SELU):
    """torch.nn.SELU, run by tvdnn's kernels."""

    kind = "selu"


class LogSigmoid(Elementwise, torch.nn.LogSigmoid):
    """torch.nn.LogSigmoid, run by tvdnn's kernels."""

    kind = "log_sigmoid"


class Softsign(Elementwise, torch.nn.Softsign):
    """torch.nn.Softsign, run by tvdnn's kernels."""

    kind = "softsign"


class Hardtanh(Elementwise, torch.nn.Hardtanh):
    """torch.nn.Hardtanh, run by tvdnn's kernels."""

    kind = "hardtanh"
    numbers = (("a", "min_val"), ("b", "max_val"))


class Threshold(Elementwise, torch.nn.Threshold):
    """torch.nn.Threshold, run by tvdnn's kernels."""

    kind = "threshold"
    numbers = (("a", "threshold"), ("b", "value"))


class GLU(torch.nn.GLU):
    """torch.nn.GLU: one half of the channels times the sigmoid of the other."""

    def forward(self, input: Tensor) -> Tensor:
        if torchs_own(input) or input.dim() == 0:
            return super().forward(input)
        values, gates = input.chunk(2, self.dim)
        return values * activate("sigmoid", gates)

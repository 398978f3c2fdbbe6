"""Mish, Softplus and other elementwise layers with up to two numbers, over the kernels."""

import torch
from torch import Tensor

from .activation import Elementwise, activate
from .eager import torchs_own


class Mish(Elementwise, torch.nn.Mish, kind="mish"):
    """torch.nn.Mish, run by tvdnn's kernels."""


class Softplus(Elementwise, torch.nn.Softplus, kind="softplus", a="beta", b="threshold"):
    """torch.nn.Softplus, run by tvdnn's kernels."""


class CELU(Elementwise, torch.nn.CELU, kind="celu", a="alpha"):
    """torch.nn.CELU, run by tvdnn's kernels."""


class SELU(Elementwise, torch.nn.SELU, kind="selu"):
    """torch.nn.SELU, run by tvdnn's kernels."""


class LogSigmoid(Elementwise, torch.nn.LogSigmoid, kind="log_sigmoid"):
    """torch.nn.LogSigmoid, run by tvdnn's kernels."""


class Softsign(Elementwise, torch.nn.Softsign, kind="softsign"):
    """torch.nn.Softsign, run by tvdnn's kernels."""


class Hardtanh(Elementwise, torch.nn.Hardtanh, kind="hardtanh", a="min_val", b="max_val"):
    """torch.nn.Hardtanh, run by tvdnn's kernels."""


class Threshold(Elementwise, torch.nn.Threshold, kind="threshold", a="threshold", b="value"):
    """torch.nn.Threshold, run by tvdnn's kernels."""


class GLU(torch.nn.GLU):
    """torch.nn.GLU: one half of the channels times the sigmoid of the other."""

    def forward(self, input: Tensor) -> Tensor:
        if torchs_own(input) or input.dim() == 0:
            return super().forward(input)
        values, gates = input.chunk(2, self.dim)
        return values * activate("sigmoid", gates)

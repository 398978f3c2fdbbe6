"""Mish, Softplus and other elementwise layers with up to two numbers, over the kernels."""

import torch
from torch import Tensor

from .activation import activate, is_torchs


class Mish(torch.nn.Mish):
    """torch.nn.Mish, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        if is_torchs(input):
            return super().forward(input)
        return unary("mish", input, inplace=self.inplace)


class Softplus(torch.nn.Softplus):
    """torch.nn.Softplus, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        if is_torchs(input):
            return super().forward(input)
        return unary("softplus", input, self.beta, self.threshold)


class CELU(torch.nn.CELU):
    """torch.nn.CELU, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        if is_torchs(input):
            return super().forward(input)
        return unary("celu", input, self.alpha, inplace=self.inplace)


class SELU(torch.nn.SELU):
    """torch.nn.SELU, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        if is_torchs(input):
            return super().forward(input)
        return unary("selu", input, inplace=self.inplace)


class LogSigmoid(torch.nn.LogSigmoid):
    """torch.nn.LogSigmoid, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) if is_torchs(input) else unary("log_sigmoid", input)


class Softsign(torch.nn.Softsign):
    """torch.nn.Softsign, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) if is_torchs(input) else unary("softsign", input)


class Hardtanh(torch.nn.Hardtanh):
    """torch.nn.Hardtanh, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        if is_torchs(input):
            return super().forward(input)
        return unary("hardtanh", input, self.min_val, self.max_val, inplace=self.inplace)


class Threshold(torch.nn.Threshold):
    """torch.nn.Threshold, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        if is_torchs(input):
            return super().forward(input)
        return unary("threshold", input, self.threshold, self.value, inplace=self.inplace)


class GLU(torch.nn.GLU):
    """torch.nn.GLU: one half of the channels times the sigmoid of the other."""

    def forward(self, input: Tensor) -> Tensor:
        if is_torchs(input):
            return super().forward(input)
        values, gates = input.chunk(2, self.dim)
        return values * activate("sigmoid", gates)


def unary(kind: str, x: Tensor, a: float = 0.0, b: float = 0.0, *, inplace: bool = False) -> Tensor:
    """What a function of kernels/pointwise/unary.py with the numbers `a` and `b` makes of `x`."""
    return activate(kind, x, attrs={"a": float(a), "b": float(b)}, inplace=inplace)

"""Mish, Softplus and other elementwise layers with up to two numbers, over the kernels."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..kernels.pointwise import unary as kernels
from .activation import overwritten, sigmoid
from .maps import apply, checked, choose, dense, dense_like, flat, torchs_own


class Mish(torch.nn.Mish):
    """torch.nn.Mish, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        if torchs_own(input):
            return functional.mish(input, self.inplace)
        return unary(input, "mish", inplace=self.inplace)


class Softplus(torch.nn.Softplus):
    """torch.nn.Softplus, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        if torchs_own(input):
            return functional.softplus(input, self.beta, self.threshold)
        return unary(input, "softplus", self.beta, self.threshold)


class CELU(torch.nn.CELU):
    """torch.nn.CELU, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        if torchs_own(input):
            return functional.celu(input, self.alpha, self.inplace)
        return unary(input, "celu", self.alpha, inplace=self.inplace)


class SELU(torch.nn.SELU):
    """torch.nn.SELU, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        if torchs_own(input):
            return functional.selu(input, self.inplace)
        return unary(input, "selu", inplace=self.inplace)


class LogSigmoid(torch.nn.LogSigmoid):
    """torch.nn.LogSigmoid, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.logsigmoid(input) if torchs_own(input) else unary(input, "log_sigmoid")


class Softsign(torch.nn.Softsign):
    """torch.nn.Softsign, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.softsign(input) if torchs_own(input) else unary(input, "softsign")


class Hardtanh(torch.nn.Hardtanh):
    """torch.nn.Hardtanh, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        if torchs_own(input):
            return functional.hardtanh(input, self.min_val, self.max_val, self.inplace)
        return unary(input, "hardtanh", self.min_val, self.max_val, inplace=self.inplace)


class Threshold(torch.nn.Threshold):
    """torch.nn.Threshold, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        if torchs_own(input):
            return functional.threshold(input, self.threshold, self.value, self.inplace)
        return unary(input, "threshold", self.threshold, self.value, inplace=self.inplace)


class GLU(torch.nn.GLU):
    """torch.nn.GLU: one half of the channels times the sigmoid of the other."""

    def forward(self, input: Tensor) -> Tensor:
        if torchs_own(input):
            return functional.glu(input, self.dim)
        values, gates = input.chunk(2, self.dim)
        return values * sigmoid(gates)


def unary(
    x: Tensor, function: str, a: float = 0.0, b: float = 0.0, *, inplace: bool = False
) -> Tensor:
    """A function of kernels/pointwise/unary.py, of float32 or bfloat16 of any shape."""
    settings = {"function": function, "a": float(a), "b": float(b)}
    return apply(_Unary, checked(x), settings, inplace)


class _Unary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, settings: dict[str, Any], inplace: bool) -> Tensor:
        source = dense(x)
        kept = source.clone() if inplace else source
        y = source if inplace else torch.empty_like(source)
        choose(x, kernels.unary, kernels.unary_reference)(flat(source), flat(y), **settings)
        ctx.settings = settings
        ctx.save_for_backward(kept)
        return overwritten(ctx, x, y) if inplace else y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        x = dense(ctx.saved_tensors[0])
        dy = dense_like(dy, x)
        dx = torch.empty_like(x)
        launch = choose(x, kernels.unary_grad, kernels.unary_grad_reference)
        launch(flat(x), flat(dy), flat(dx), **ctx.settings)
        return dx, None, None

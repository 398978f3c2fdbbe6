"""Mish, Softplus and other elementwise layers with up to two numbers, over the kernels."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..kernels import unary as kernels
from .activation import overwritten, sigmoid
from .maps import apply, checked, choose, dense, dense_like, flat, torchs_own


class Mish(torch.nn.Mish):
    """torch.nn.Mish, run by tvdnn's kernels."""

    def forward(self, x: Tensor) -> Tensor:
        if torchs_own(x):
            return functional.mish(x, self.inplace)
        return unary(x, "mish", inplace=self.inplace)


class Softplus(torch.nn.Softplus):
    """torch.nn.Softplus, run by tvdnn's kernels."""

    def forward(self, x: Tensor) -> Tensor:
        if torchs_own(x):
            return functional.softplus(x, self.beta, self.threshold)
        return unary(x, "softplus", self.beta, self.threshold)


class CELU(torch.nn.CELU):
    """torch.nn.CELU, run by tvdnn's kernels."""

    def forward(self, x: Tensor) -> Tensor:
        if torchs_own(x):
            return functional.celu(x, self.alpha, self.inplace)
        return unary(x, "celu", self.alpha, inplace=self.inplace)


class SELU(torch.nn.SELU):
    """torch.nn.SELU, run by tvdnn's kernels."""

    def forward(self, x: Tensor) -> Tensor:
        if torchs_own(x):
            return functional.selu(x, self.inplace)
        return unary(x, "selu", inplace=self.inplace)


class LogSigmoid(torch.nn.LogSigmoid):
    """torch.nn.LogSigmoid, run by tvdnn's kernels."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.logsigmoid(x) if torchs_own(x) else unary(x, "log_sigmoid")


class Softsign(torch.nn.Softsign):
    """torch.nn.Softsign, run by tvdnn's kernels."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.softsign(x) if torchs_own(x) else unary(x, "softsign")


class Hardtanh(torch.nn.Hardtanh):
    """torch.nn.Hardtanh, run by tvdnn's kernels."""

    def forward(self, x: Tensor) -> Tensor:
        if torchs_own(x):
            return functional.hardtanh(x, self.min_val, self.max_val, self.inplace)
        return unary(x, "hardtanh", self.min_val, self.max_val, inplace=self.inplace)


class Threshold(torch.nn.Threshold):
    """torch.nn.Threshold, run by tvdnn's kernels."""

    def forward(self, x: Tensor) -> Tensor:
        if torchs_own(x):
            return functional.threshold(x, self.threshold, self.value, self.inplace)
        return unary(x, "threshold", self.threshold, self.value, inplace=self.inplace)


class GLU(torch.nn.GLU):
    """torch.nn.GLU: one half of the channels times the sigmoid of the other."""

    def forward(self, x: Tensor) -> Tensor:
        if torchs_own(x):
            return functional.glu(x, self.dim)
        values, gates = x.chunk(2, self.dim)
        return values * sigmoid(gates)


def unary(
    x: Tensor, function: str, a: float = 0.0, b: float = 0.0, *, inplace: bool = False
) -> Tensor:
    """A function of kernels/unary.py, of float32 or bfloat16 of any shape."""
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

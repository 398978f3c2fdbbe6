"""ReLU and other activation functions over the kernels."""

from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..kernels.pointwise import activation as kernels
from .maps import apply, checked, choose, dense, dense_like, flat, torchs_own

GELUS: Final = {"none": "gelu", "tanh": "gelu_tanh"}
BY_EITHER: Final = ("leaky_relu", "relu6")  # functions whose gradient input and output tell alike


class ReLU(torch.nn.ReLU):
    """torch.nn.ReLU, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return relu(input, self.inplace)


class LeakyReLU(torch.nn.LeakyReLU):
    """torch.nn.LeakyReLU, run by tvdnn's kernels; by torch where the slope is negative."""

    def forward(self, input: Tensor) -> Tensor:
        return leaky_relu(input, self.negative_slope, self.inplace)


class ReLU6(torch.nn.ReLU6):
    """torch.nn.ReLU6, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return relu6(input, self.inplace)


class ELU(torch.nn.ELU):
    """torch.nn.ELU, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return elu(input, self.alpha, self.inplace)


class SiLU(torch.nn.SiLU):
    """torch.nn.SiLU, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return silu(input, self.inplace)


class GELU(torch.nn.GELU):
    """torch.nn.GELU, exact and by tanh, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return gelu(input, self.approximate)


class Sigmoid(torch.nn.Sigmoid):
    """torch.nn.Sigmoid, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return sigmoid(input)


class Tanh(torch.nn.Tanh):
    """torch.nn.Tanh, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return tanh(input)


class Hardswish(torch.nn.Hardswish):
    """torch.nn.Hardswish, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return hardswish(input, self.inplace)


class Hardsigmoid(torch.nn.Hardsigmoid):
    """torch.nn.Hardsigmoid, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return hardsigmoid(input, self.inplace)


def relu(x: Tensor, inplace: bool = False) -> Tensor:
    """torch.nn.functional.relu, of float32 or bfloat16 of any shape."""
    if torchs_own(x):
        return functional.relu(x, inplace)
    return apply(_ReLU, checked(x), inplace)


def leaky_relu(x: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """torch.nn.functional.leaky_relu, of float32 or bfloat16 of any shape."""
    if torchs_own(x) or negative_slope < 0:
        return functional.leaky_relu(x, negative_slope, inplace)
    return apply(_Activation, checked(x), "leaky_relu", negative_slope, inplace)


def relu6(x: Tensor, inplace: bool = False) -> Tensor:
    """torch.nn.functional.relu6, of float32 or bfloat16 of any shape."""
    if torchs_own(x):
        return functional.relu6(x, inplace)
    return apply(_Activation, checked(x), "relu6", 0.0, inplace)


def elu(x: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """torch.nn.functional.elu, of float32 or bfloat16 of any shape."""
    if torchs_own(x):
        return functional.elu(x, alpha, inplace)
    return apply(_Activation, checked(x), "elu", alpha, inplace)


def silu(x: Tensor, inplace: bool = False) -> Tensor:
    """torch.nn.functional.silu, of float32 or bfloat16 of any shape."""
    if torchs_own(x):
        return functional.silu(x, inplace)
    return apply(_Activation, checked(x), "silu", 0.0, inplace)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """torch.nn.functional.gelu, of float32 or bfloat16 of any shape."""
    if torchs_own(x) or approximate not in GELUS:
        return functional.gelu(x, approximate=approximate)
    return apply(_Activation, checked(x), GELUS[approximate], 0.0, False)


def sigmoid(x: Tensor) -> Tensor:
    """torch.sigmoid, of float32 or bfloat16 of any shape."""
    if torchs_own(x):
        return torch.sigmoid(x)
    return apply(_Activation, checked(x), "sigmoid", 0.0, False)


def tanh(x: Tensor) -> Tensor:
    """torch.tanh, of float32 or bfloat16 of any shape."""
    if torchs_own(x):
        return torch.tanh(x)
    return apply(_Activation, checked(x), "tanh", 0.0, False)


def hardswish(x: Tensor, inplace: bool = False) -> Tensor:
    """torch.nn.functional.hardswish, of float32 or bfloat16 of any shape."""
    if torchs_own(x):
        return functional.hardswish(x, inplace)
    return apply(_Activation, checked(x), "hardswish", 0.0, inplace)


def hardsigmoid(x: Tensor, inplace: bool = False) -> Tensor:
    """torch.nn.functional.hardsigmoid, of float32 or bfloat16 of any shape."""
    if torchs_own(x):
        return functional.hardsigmoid(x, inplace)
    return apply(_Activation, checked(x), "hardsigmoid", 0.0, inplace)


class _ReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, inplace: bool) -> Tensor:
        source = dense(x)
        y = source if inplace else torch.empty_like(source)
        choose(x, kernels.relu, kernels.relu_reference)(flat(source), flat(y))
        y = overwritten(ctx, x, y) if inplace else y
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        y = dense(ctx.saved_tensors[0])
        dy = dense_like(dy, y)
        dx = torch.empty_like(y)
        choose(y, kernels.relu_grad, kernels.relu_grad_reference)(flat(y), flat(dy), flat(dx))
        return dx, None


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, function: str, coefficient: float, inplace: bool) -> Tensor:
        source, by_output = dense(x), function in kernels.BY_OUTPUT
        kept = source.clone() if inplace and not by_output else source
        y = source if inplace else torch.empty_like(source)
        ctx.settings = {"function": function, "coefficient": coefficient}
        launch = choose(x, kernels.activate, kernels.activate_reference)
        launch(flat(source), flat(y), **ctx.settings)
        y = overwritten(ctx, x, y) if inplace else y
        keeps_input = function in BY_EITHER and not inplace  # as torch: others may write over y
        ctx.save_for_backward(y if by_output and not keeps_input else kept)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        values = dense(ctx.saved_tensors[0])
        dy = dense_like(dy, values)
        dx = torch.empty_like(values)
        launch = choose(values, kernels.activate_grad, kernels.activate_grad_reference)
        launch(flat(values), flat(dy), flat(dx), **ctx.settings)
        return dx, None, None, None


def overwritten(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
    """x with the elements of y, which may lie in it already."""
    ctx.mark_dirty(x)
    return x if y is x else x.copy_(y)

"""Fully connected layers over the kernels."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..errors import InputError
from ..kernels.copy import layout
from ..kernels.linear import passes as kernels
from .maps import apply, autocast, choose, torchs_own


class Linear(torch.nn.Linear):
    """torch.nn.Linear, run by tvdnn's kernels in the input's type."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class LazyLinear(torch.nn.LazyLinear, Linear):
    """A Linear that takes its input features from its first input."""

    cls_to_become = Linear


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """torch.nn.functional.linear of x [..., F]; weight [O, F] and bias [O] of any float type."""
    if torchs_own(x, weight):
        return functional.linear(x, weight, bias)
    if x.shape[-1:] != weight.shape[1:]:
        raise InputError(f"the input has shape {tuple(x.shape)}; weight is {tuple(weight.shape)}")
    x = autocast(x)
    with torch.autocast(x.device.type, enabled=False):
        y = apply(_Linear, x.reshape(-1, x.shape[-1]), weight, bias)
    return y.view(*x.shape[:-1], weight.shape[0])


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x = x.contiguous()
        y = x.new_empty(x.shape[0], weight.shape[0])
        launch = choose(x, kernels.linear, kernels.linear_reference)
        cast = _operand(weight, x)
        launch(x, cast, None if bias is None else bias.float(), y, precision=_precision(x))
        ctx.save_for_backward(x, weight, bias)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight, bias = ctx.saved_tensors
        dy = dy.contiguous()
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            _grad_input(dy, weight) if wants_x else None,
            _grad_weight(x, dy).to(weight.dtype) if wants_weight else None,
            _grad_bias(dy).to(bias.dtype) if wants_bias else None,
        )


def _operand(weight: Tensor, other: Tensor) -> Tensor:
    """The weight as a product with `other` reads it."""
    weight = weight.to(other.dtype).contiguous()
    if other.dtype != torch.float32 or _precision(other) == "ieee":
        return weight
    rounded = torch.empty_like(weight)
    choose(other, layout.cast, layout.cast_reference)(weight, rounded, precision="tf32")
    return rounded


def _grad_input(dy: Tensor, weight: Tensor) -> Tensor:
    dx = dy.new_empty(dy.shape[0], weight.shape[1])
    launch = choose(dy, kernels.linear_grad_input, kernels.linear_grad_input_reference)
    launch(dy, _operand(weight, dy), dx, precision=_precision(dy))
    return dx


def _grad_weight(x: Tensor, dy: Tensor) -> Tensor:
    if not len(x):
        return x.new_zeros(dy.shape[1], x.shape[1])
    grad = torch.empty(dy.shape[1], x.shape[1], dtype=torch.float32, device=x.device)
    launch = choose(x, kernels.linear_grad_weight, kernels.linear_grad_weight_reference)
    launch(x, dy, grad, group=len(x), precision=_precision(x))
    return grad


def _grad_bias(dy: Tensor) -> Tensor:
    if not len(dy):
        return dy.new_zeros(dy.shape[1])
    grad = torch.empty(dy.shape[1], dtype=torch.float32, device=dy.device)
    launch = choose(dy, kernels.linear_grad_bias, kernels.linear_grad_bias_reference)
    launch(dy, grad, group=len(dy))
    return grad


def _precision(x: Tensor) -> str:
    """What torch's own switches ask of a float32 matrix product; the CPU knows no TF32."""
    allowed = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return "tf32" if x.is_cuda and allowed else "ieee"

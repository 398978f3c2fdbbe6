"""ReLU over the kernels."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..kernels import activation as kernels
from .maps import apply, checked, choose, dense, dense_like, flat, torchs_own


class ReLU(torch.nn.ReLU):
    """torch.nn.ReLU, run by tvdnn's kernels."""

    def forward(self, x: Tensor) -> Tensor:
        return relu(x, self.inplace)


def relu(x: Tensor, inplace: bool = False) -> Tensor:
    """torch.nn.functional.relu, of float32 or bfloat16 of any shape."""
    if torchs_own(x):
        return functional.relu(x, inplace)
    return apply(_ReLU, checked(x), inplace)


class _ReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, inplace: bool) -> Tensor:
        source = dense(x)
        y = source if inplace else torch.empty_like(source)
        choose(x, kernels.relu, kernels.relu_reference)(flat(source), flat(y))
        if inplace:
            ctx.mark_dirty(x)
            y = x if source is x else x.copy_(y)
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

"""Softmax over channels, and its logarithm, over the kernels."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..kernels.pointwise import softmax as kernels
from .maps import apply, checked, choose, nchw, nhwc, torchs_own


class Softmax(torch.nn.Softmax):
    """torch.nn.Softmax, run by tvdnn's kernels over channels; over others by torch."""

    def forward(self, input: Tensor) -> Tensor:
        return softmax(input, self.dim)


class LogSoftmax(torch.nn.LogSoftmax):
    """torch.nn.LogSoftmax, run by tvdnn's kernels over channels; over others by torch."""

    def forward(self, input: Tensor) -> Tensor:
        return log_softmax(input, self.dim)


def softmax(x: Tensor, dim: int | None = None) -> Tensor:
    """torch.nn.functional.softmax, over the channels of [N, C] or [N, C, H, W]."""
    if _is_torchs(x, dim):
        return functional.softmax(x, dim)
    return apply(_Softmax, checked(x), "softmax")


def log_softmax(x: Tensor, dim: int | None = None) -> Tensor:
    """torch.nn.functional.log_softmax, over the channels of [N, C] or [N, C, H, W]."""
    if _is_torchs(x, dim):
        return functional.log_softmax(x, dim)
    return apply(_Softmax, checked(x), "log_softmax")


def _is_torchs(x: Tensor, dim: int | None) -> bool:
    over_channels = x.dim() in (2, 4) and dim in (1, 1 - x.dim())
    return torchs_own(x) or not over_channels or x.shape[1] > kernels.MOST_CHANNELS


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, function: str) -> Tensor:
        rows = _rows(x)
        y = torch.empty_like(rows)
        launch = choose(x, kernels.softmax, kernels.softmax_reference)
        launch(rows.flatten(0, -2), y.flatten(0, -2), function=function)
        ctx.function = function
        y = y if x.dim() == 2 else nchw(y, like=x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        y = _rows(ctx.saved_tensors[0])
        dx = torch.empty_like(y)
        launch = choose(y, kernels.softmax_grad, kernels.softmax_grad_reference)
        maps = (each.flatten(0, -2) for each in (y, _rows(dy), dx))
        launch(*maps, function=ctx.function)
        return dx if dy.dim() == 2 else nchw(dx, like=dy), None


def _rows(x: Tensor) -> Tensor:
    """[N, C] or [N, H, W, C], contiguous."""
    return x.contiguous() if x.dim() == 2 else nhwc(x)

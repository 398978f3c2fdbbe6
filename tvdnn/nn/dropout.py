"""Dropout over the kernels: a mask is a seed, and backward makes it again."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..kernels import dropout as kernels
from .maps import apply, checked, choose, dense, dense_like, flat, torchs_own


class Dropout(torch.nn.Dropout):
    """torch.nn.Dropout, run by tvdnn's kernels; nothing is kept for backward but a seed."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training, self.inplace)


def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """torch.nn.functional.dropout; each call draws its seed from torch's generator."""
    if torchs_own(x):
        return functional.dropout(x, p, training, inplace)
    if not training or p == 0:
        return x
    seed = torch.randint(2**63 - 1, (1,), device=x.device)
    return apply(_Dropout, checked(x), seed, p, inplace)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, seed: Tensor, p: float, inplace: bool) -> Tensor:
        source = dense(x)
        y = source if inplace else torch.empty_like(source)
        _drop(source, y, seed, p)
        if inplace:
            ctx.mark_dirty(x)
            y = x if source is x else x.copy_(y)
        ctx.p, ctx.layout = p, source.stride()
        ctx.save_for_backward(seed)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        dx = torch.empty_strided(dy.shape, ctx.layout, dtype=dy.dtype, device=dy.device)
        _drop(dense_like(dy, dx), dx, ctx.saved_tensors[0], ctx.p)
        return dx, None, None, None


def _drop(x: Tensor, y: Tensor, seed: Tensor, p: float) -> None:
    launch = choose(x, kernels.dropout, kernels.dropout_reference)
    launch(flat(x), flat(y), seed, p=p, op_id=0, first_sample=0)

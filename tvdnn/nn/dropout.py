"""Dropout over the kernels: a mask is a seed, and backward makes it again."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from .. import functional as torch_only
from ..errors import InputError
from ..kernels.pointwise import dropout as kernels
from ..kernels.pointwise import dropout_blocks as part_kernels
from .maps import apply, checked, choose, dense, dense_like, flat, nchw, nhwc, owned, torchs_own


class Dropout(torch.nn.Dropout):
    """torch.nn.Dropout, run by tvdnn's kernels; nothing is kept for backward but a seed."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p, self.training, self.inplace)


class Dropout2d(torch.nn.Dropout2d):
    """torch.nn.Dropout2d of maps [N, C, H, W], run by tvdnn's kernels; in place by torch."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout2d(input, self.p, self.training, self.inplace)


class StochasticDepth(torch.nn.Module):
    """Drops what a residual branch makes of samples, by themselves ("row") or together ("batch").

    Huang et al., Deep Networks with Stochastic Depth, 2016. It has the arguments of torchvision's:
    each falls with probability `p`, and what stays is divided by 1 - p; nothing happens in eval.
    """

    def __init__(self, p: float, mode: str) -> None:
        super().__init__()
        if not 0 <= p <= 1 or mode not in ("row", "batch"):
            raise InputError(f"p is {p} and mode {mode!r}; give 0 to 1, and row or batch")
        self.p, self.mode = p, mode

    def forward(self, input: Tensor) -> Tensor:
        return stochastic_depth(input, self.p, self.mode, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}, mode={self.mode}"


def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """torch.nn.functional.dropout; each call draws its seed from torch's generator."""
    if torchs_own(x):
        return functional.dropout(x, p, training, inplace)
    if not training or p == 0:
        return x
    return apply(_Dropout, checked(x), _seed(x), p, inplace)


def dropout2d(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """torch.nn.functional.dropout2d; each call draws its seed from torch's generator."""
    if torchs_own(x) or x.dim() != 4 or inplace:
        result: Tensor = functional.dropout2d(x, p, training, inplace)
        return result
    if not training or p == 0:
        return x
    return apply(_DropoutParts, checked(x), _seed(x), p, "channel")


def stochastic_depth(x: Tensor, p: float, mode: str, training: bool = True) -> Tensor:
    """What StochasticDepth makes of x; each call draws its seed from torch's generator."""
    if torchs_own(x) or x.dim() not in (2, 4):
        return torch_only.stochastic_depth(x, p, mode, training)
    if not training or p == 0:
        return x
    return apply(_DropoutParts, checked(x), _seed(x), p, mode)


def drop_branch(layer: torch.nn.Module, *given: Tensor, **named: Tensor) -> Tensor:
    """What torchvision's StochasticDepth, or timm's DropPath, makes of its input in its mode.

    The one calls its input `input`, the other `x`.
    """
    (x,) = (*given, *named.values())
    settings = vars(layer)
    if "drop_prob" in settings and not settings["scale_by_keep"]:
        raise InputError("DropPath without scale_by_keep is not supported; set it")
    p, mode = settings.get("drop_prob", settings.get("p")), settings.get("mode", "row")
    return stochastic_depth(x, p or 0.0, mode, layer.training)


def _seed(x: Tensor) -> Tensor:
    return torch.randint(2**63 - 1, (1,), device=x.device)


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


class _DropoutParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, seed: Tensor, p: float, part: str) -> Tensor:
        ctx.p, ctx.part = p, part
        ctx.save_for_backward(seed)
        return _drop_parts(x, seed, p, part)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        return _drop_parts(dy, ctx.saved_tensors[0], ctx.p, ctx.part), None, None, None


def _drop_parts(x: Tensor, seed: Tensor, p: float, part: str) -> Tensor:
    maps = nhwc(x).flatten(1, 2) if x.dim() == 4 else x.contiguous()[:, None]
    y = torch.empty_like(maps)
    launch = choose(x, part_kernels.dropout_parts, part_kernels.dropout_parts_reference)
    launch(maps, y, seed, part=part, p=p, op_id=0, first_sample=0)
    if x.dim() == 2:
        return owned(y[:, 0])
    return nchw(y.unflatten(1, x.shape[2:]), like=x)

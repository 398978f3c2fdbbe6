"""Batch normalization in training over feature maps [N, H, W, C], forward and backward."""

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from bench.cases.case import Calls
from bench.cases.tensors import Shape, few, nchw, poisoned, randn
from tvdnn.kernels.norm import batch_norm, batch_norm_grad
from tvdnn.kernels.norm.batch_norm_tiles import batch_norm_plan

EPS: Final = 1e-5


def normalized(shape: Shape, kind: torch.dtype) -> Calls:
    """Moments, their merge, and the map: x is read twice."""
    x, y = randn(shape, kind), poisoned(shape, kind)
    partials, statistics = _sums(shape)

    def own() -> Tensor:
        _normalize(x, partials, statistics, y)
        return nchw(y)

    def exact() -> Tensor:
        return few(functional.batch_norm(nchw(x).double(), None, None, training=True, eps=EPS))

    def peer() -> Tensor:
        return functional.batch_norm(nchw(x), None, None, training=True, eps=EPS)

    return Calls(own, peer, exact, few)


def gradient(shape: Shape, kind: torch.dtype) -> Calls:
    """The sums, their merge, and the map: x and dy are read twice."""
    x, dy, dx = randn(shape, kind), randn(shape, kind), poisoned(shape, kind)
    partials, statistics = _sums(shape)
    _normalize(x, partials, statistics, dx)
    sums, rows = torch.empty(2, shape[-1]), x.numel() // shape[-1]
    group = batch_norm_plan(shape).group

    def own() -> Tensor:
        operands = (x, dy, None, statistics, None, None, None, partials, None)
        batch_norm_grad.batch_norm_grad_sums(*operands, group=group)
        batch_norm_grad.batch_norm_grad_params(partials, statistics, *sums)
        behind = (statistics, None, None, *sums, dx)
        batch_norm_grad.batch_norm_grad_input(x, dy, *behind, rows=rows)
        return nchw(dx)

    leaf = nchw(x).detach().requires_grad_()
    output = functional.batch_norm(leaf, None, None, training=True, eps=EPS)

    def peer() -> Tensor:
        return torch.autograd.grad(output, leaf, nchw(dy), retain_graph=True)[0]

    def exact() -> Tensor:
        wide = nchw(x).double().requires_grad_()
        y = functional.batch_norm(wide, None, None, training=True, eps=EPS)
        return few(torch.autograd.grad(y, wide, nchw(dy).double())[0])

    return Calls(own, peer, exact, few)


def _sums(shape: Shape) -> tuple[Tensor, Tensor]:
    """Room for the sums of all slices, and for the statistics."""
    partials = torch.empty(batch_norm_plan(shape).partials_shape(shape[0], shape[-1]))
    return partials, torch.empty(3, shape[-1])


def _normalize(x: Tensor, partials: Tensor, statistics: Tensor, y: Tensor) -> None:
    cut = {"group": batch_norm_plan(x.shape).group}
    batch_norm.batch_norm_moments(x, partials, **cut)
    settings = {"shape": tuple(x.shape), "momentum": 0.1, "eps": EPS, **cut}
    batch_norm.batch_norm_statistics(partials, statistics, None, None, None, **settings)
    batch_norm.batch_norm(x, statistics, None, None, None, y)

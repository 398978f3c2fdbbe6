"""Layer normalization over the kernels."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..errors import InputError
from ..kernels.norm import layer_norm as kernels
from ..kernels.reduce import partials as reduce
from ..kernels.reduce import per_sample as sample_sums
from .maps import apply, checked, choose, owned, torchs_own


class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm, run by tvdnn's kernels in the input's type."""

    def forward(self, input: Tensor) -> Tensor:
        return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """torch.nn.functional.layer_norm of float32 or bfloat16; parameters of any float type."""
    if torchs_own(x) or x.numel() == 0:
        return functional.layer_norm(x, normalized_shape, weight, bias, eps)
    if x.shape[x.dim() - len(normalized_shape) :] != torch.Size(normalized_shape):
        wanted = f"normalized_shape is {tuple(normalized_shape)}"
        raise InputError(f"the input has shape {tuple(x.shape)}; {wanted}")
    return apply(_LayerNorm, checked(x), len(normalized_shape), weight, bias, eps)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dims: int, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        rows = _rows(x, dims)
        y = torch.empty_like(rows)
        launch = choose(x, kernels.layer_norm, kernels.layer_norm_reference)
        launch(rows, flat(weight), flat(bias), y, eps=eps)
        ctx.save_for_backward(x, weight, bias)
        ctx.dims, ctx.eps = dims, eps
        return _like(y, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        rows, upper = _rows(x, ctx.dims), _rows(dy, ctx.dims)
        dx, sums = torch.empty_like(rows), None
        if any(ctx.needs_input_grad[2:4]):
            chunks = kernels.layer_norm_chunks(rows.shape[1], rows.shape[2])
            sums = rows.new_empty(1, chunks, 2, rows.shape[2], dtype=torch.float32)
        launch = choose(x, kernels.layer_norm_grad, kernels.layer_norm_grad_reference)
        launch(rows, upper, flat(weight), dx, sums, eps=ctx.eps)
        return (_like(dx, x), None, *param_grads(sums, weight, bias), None)


def param_grads(sums: Tensor | None, *params: Tensor | None) -> list[Tensor | None]:
    """The gradients of those parameters that want one; kind i of the sums is the i-th one's."""
    return [
        None if sums is None or param is None or not param.requires_grad else _sum(sums, i, param)
        for i, param in enumerate(params)
    ]


def _sum(sums: Tensor, kind: int, param: Tensor) -> Tensor:
    running = sums.new_zeros(sample_sums.sample_splits(sums.shape[1]), sums.shape[3])
    add = choose(sums, sample_sums.add_sample_sums, sample_sums.add_sample_sums_reference)
    add(sums, running, kind=kind, first=True)
    grad = sums.new_empty(sums.shape[3])
    choose(sums, reduce.sum_partials, reduce.sum_partials_reference)(running, grad, first=True)
    return grad.view(param.shape).to(param.dtype)


def _rows(x: Tensor, dims: int) -> Tensor:
    """All rows of the last `dims` dimensions, as those of one sample."""
    return x.contiguous().view(1, -1, x.shape[x.dim() - dims :].numel())


def _like(rows: Tensor, x: Tensor) -> Tensor:
    """Rows in the shape of `x` and in its memory format."""
    y = rows.view(x.shape)
    return owned(y) if x.is_contiguous() else torch.empty_like(x).copy_(y)


def flat(param: Tensor | None) -> Tensor | None:
    """A parameter as the kernels read it."""
    return None if param is None else param.float().contiguous().view(-1)

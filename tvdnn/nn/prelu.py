"""PReLU over the kernels."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..kernels.pointwise import prelu as kernels
from .group_norm import like_torchs, pixels_of
from .layer_norm import flat, param_grads
from .maps import apply, checked, choose, torchs_own


class PReLU(torch.nn.PReLU):
    """torch.nn.PReLU, run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return prelu(input, self.weight)


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """torch.nn.functional.prelu of [N, C, ...], with a slope for all channels or for each."""
    slopes = weight.numel()
    fits = x.dim() > 1 and slopes in (1, x.shape[1]) and x.numel() > 0
    if torchs_own(x) or not fits:
        return functional.prelu(x, weight)
    return apply(_PReLU, checked(x), weight)


class _PReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        pixels = pixels_of(x)
        y = torch.empty_like(pixels)
        choose(x, kernels.prelu, kernels.prelu_reference)(pixels, flat(weight), y)
        ctx.save_for_backward(x, weight)
        return like_torchs(y, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        pixels, slopes = pixels_of(x), weight.numel()
        samples, count, channels = pixels.shape
        dx, sums = torch.empty_like(pixels), None
        if ctx.needs_input_grad[1]:
            terms = kernels.prelu_terms(count, channels, slopes)
            sums = pixels.new_empty(samples, terms, 1, slopes, dtype=torch.float32)
        launch = choose(x, kernels.prelu_grad, kernels.prelu_grad_reference)
        launch(pixels, pixels_of(dy), flat(weight), dx, sums)
        return (like_torchs(dx, x), *param_grads(sums, weight))

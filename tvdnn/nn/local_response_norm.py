"""Local response normalisation over the kernels."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..kernels.norm import local_response_norm as kernels
from .maps import apply, checked, choose, nchw, nhwc, torchs_own


class LocalResponseNorm(torch.nn.LocalResponseNorm):
    """torch.nn.LocalResponseNorm of maps [N, C, H, W], run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return local_response_norm(input, self.size, self.alpha, self.beta, self.k)


def local_response_norm(
    x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """torch.nn.functional.local_response_norm of maps [N, C, H, W]."""
    if torchs_own(x):
        return functional.local_response_norm(x, size, alpha, beta, k)
    settings = {"size": size, "alpha": alpha, "beta": beta, "k": k}
    return apply(_LocalResponseNorm, checked(x), settings)


class _LocalResponseNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, settings: dict[str, Any]) -> Tensor:
        maps = nhwc(x)
        y = torch.empty_like(maps)
        launch = choose(x, kernels.local_response_norm, kernels.local_response_norm_reference)
        launch(maps, y, **settings)
        ctx.save_for_backward(x)
        ctx.settings = settings
        return nchw(y, like=x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        maps = nhwc(ctx.saved_tensors[0])
        dx = torch.empty_like(maps)
        launch = choose(
            maps, kernels.local_response_norm_grad, kernels.local_response_norm_grad_reference
        )
        launch(maps, nhwc(dy), dx, **ctx.settings)
        return dx.permute(0, 3, 1, 2), None

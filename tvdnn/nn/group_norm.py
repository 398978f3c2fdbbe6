"""Group and instance normalization over the kernels."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..kernels.language.channel_chunks import num_chunks
from ..kernels.norm import group_norm as kernels
from .layer_norm import flat, param_grads
from .maps import apply, checked, choose, torchs_own


class GroupNorm(torch.nn.GroupNorm):
    """torch.nn.GroupNorm, run by tvdnn's kernels in the input's type."""

    def forward(self, input: Tensor) -> Tensor:
        return group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


class InstanceNorm1d(torch.nn.InstanceNorm1d):
    """torch.nn.InstanceNorm1d of [N, C, L], run by tvdnn's kernels; see InstanceNorm2d."""

    def forward(self, input: Tensor) -> Tensor:
        return (
            super().forward(input) if _is_torchs(self, input, dims=3) else _by_instance(self, input)
        )


class InstanceNorm2d(torch.nn.InstanceNorm2d):
    """torch.nn.InstanceNorm2d of maps [N, C, H, W], run by tvdnn's kernels in the input's type.

    With track_running_stats, or of a map without a batch, it is torch's own.
    """

    def forward(self, input: Tensor) -> Tensor:
        return (
            super().forward(input) if _is_torchs(self, input, dims=4) else _by_instance(self, input)
        )


Instances = torch.nn.InstanceNorm1d | torch.nn.InstanceNorm2d


def _is_torchs(layer: Instances, x: Tensor, *, dims: int) -> bool:
    """Whether a call is left to torch, which also says what is wrong with it."""
    one_pixel = x.dim() != dims or x.shape[2:].numel() < 2
    return torchs_own(x) or layer.track_running_stats or one_pixel


def _by_instance(layer: Instances, x: Tensor) -> Tensor:
    return group_norm(x, x.shape[1], layer.weight, layer.bias, layer.eps)


def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """torch.nn.functional.group_norm of [N, C, ...]; parameters of any float type."""
    refused = x.dim() < 2 or x.shape[1] % num_groups or x.numel() == num_groups
    if torchs_own(x) or refused or not x.numel():
        return functional.group_norm(x, num_groups, weight, bias, eps)
    return apply(_GroupNorm, checked(x), num_groups, weight, bias, eps)


class _GroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        pixels = pixels_of(x)
        y, moments = torch.empty_like(pixels), _by_group(pixels, groups)
        launch = choose(x, kernels.group_norm, kernels.group_norm_reference)
        room = (moments, _by_chunk(pixels))
        launch(pixels, flat(weight), flat(bias), y, *room, groups=groups, eps=eps)
        ctx.save_for_backward(x, weight, bias, moments)
        ctx.groups = groups
        return like_torchs(y, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, moments = ctx.saved_tensors
        pixels = pixels_of(x)
        dx, sums = torch.empty_like(pixels), _by_chunk(pixels)
        launch = choose(x, kernels.group_norm_grad, kernels.group_norm_grad_reference)
        room = (dx, sums, _by_group(pixels, ctx.groups))
        launch(pixels, pixels_of(dy), flat(weight), moments, *room, groups=ctx.groups)
        return (like_torchs(dx, x), None, *param_grads(sums, weight, bias), None)


def pixels_of(x: Tensor) -> Tensor:
    """[N, C, ...] as contiguous [N, pixels, C]."""
    return x.flatten(2).mT.contiguous() if x.dim() > 2 else x[:, None].contiguous()


def like_torchs(pixels: Tensor, x: Tensor) -> Tensor:
    """[N, pixels, C] in the shape of `x` and in its memory format."""
    return torch.empty_like(x).copy_(pixels.mT.reshape(x.shape))


def _by_group(pixels: Tensor, groups: int) -> Tensor:
    return pixels.new_empty(len(pixels), groups, 2, dtype=torch.float32)


def _by_chunk(pixels: Tensor) -> Tensor:
    samples, count, channels = pixels.shape
    chunks = num_chunks(count, channels)
    return pixels.new_empty(samples, chunks, 2, channels, dtype=torch.float32)

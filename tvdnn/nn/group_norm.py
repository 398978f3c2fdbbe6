"""Group and instance normalization over the kernels."""

import torch
from torch import Tensor
from torch.nn import functional

from .eager import checked, run, torchs_own


class GroupNorm(torch.nn.GroupNorm):
    """torch.nn.GroupNorm, run by tvdnn's kernels in the input's type."""

    def forward(self, input: Tensor) -> Tensor:
        return group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


class InstanceNorm1d(torch.nn.InstanceNorm1d):
    """torch.nn.InstanceNorm1d of [N, C, L], run by tvdnn's kernels; see InstanceNorm2d."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) if _is_torchs(self, input, dims=3) else _of_each(self, input)


class InstanceNorm2d(torch.nn.InstanceNorm2d):
    """torch.nn.InstanceNorm2d of maps [N, C, H, W], run by tvdnn's kernels in the input's type.

    With track_running_stats, or of a map without a batch, it is torch's own.
    """

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) if _is_torchs(self, input, dims=4) else _of_each(self, input)


Instances = torch.nn.InstanceNorm1d | torch.nn.InstanceNorm2d


def _is_torchs(layer: Instances, x: Tensor, *, dims: int) -> bool:
    """Whether a call is left to torch, which also says what is wrong with it."""
    one_pixel = x.dim() != dims or x.shape[2:].numel() < 2
    return torchs_own(x) or layer.track_running_stats or one_pixel


def _of_each(layer: Instances, x: Tensor) -> Tensor:
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
    if torchs_own(x) or refused:
        return functional.group_norm(x, num_groups, weight, bias, eps)
    settings = {"groups": num_groups, "eps": float(eps)}
    return run("group_norm", checked(x), weight, bias, attrs=settings)

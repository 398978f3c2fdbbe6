"""Group and instance normalization over the kernels."""

import torch
from torch import Tensor
from torch.nn import functional

from .eager import checked, run, torchs_own


class GroupNorm(torch.nn.GroupNorm):
    """torch.nn.GroupNorm, run by tvdnn's kernels in the input's type."""

    def forward(self, input: Tensor) -> Tensor:
        return _normalized(self, input, self.num_groups)


class InstanceNorm1d(torch.nn.InstanceNorm1d):
    """torch.nn.InstanceNorm1d of [N, C, L], run by tvdnn's kernels; see InstanceNorm2d."""

    def forward(self, input: Tensor) -> Tensor:
        refused = _is_torchs(self, input, dims=3)
        return super().forward(input) if refused else _normalized(self, input, input.shape[1])


class InstanceNorm2d(torch.nn.InstanceNorm2d):
    """torch.nn.InstanceNorm2d of maps [N, C, H, W], run by tvdnn's kernels in the input's type.

    With track_running_stats, or of a map without a batch, it is torch's own.
    """

    def forward(self, input: Tensor) -> Tensor:
        refused = _is_torchs(self, input, dims=4)
        return super().forward(input) if refused else _normalized(self, input, input.shape[1])


Instances = torch.nn.InstanceNorm1d | torch.nn.InstanceNorm2d


def _is_torchs(layer: Instances, x: Tensor, *, dims: int) -> bool:
    """Whether a call is left to torch, which also says what is wrong with it."""
    one_pixel = x.dim() != dims or x.shape[2:].numel() < 2
    return torchs_own(x) or layer.track_running_stats or one_pixel


def _normalized(layer: torch.nn.GroupNorm | Instances, x: Tensor, groups: int) -> Tensor:
    """The norm of groups of channels of [N, C, ...]; parameters of any float type."""
    refused = x.dim() < 2 or x.shape[1] % groups or x.numel() == groups
    if torchs_own(x) or refused:
        return functional.group_norm(x, groups, layer.weight, layer.bias, layer.eps)
    settings = {"groups": groups, "eps": float(layer.eps)}
    return run("group_norm", checked(x), layer.weight, layer.bias, attrs=settings)

"""Batch normalization over the kernels."""

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ..functional import batch_norm_arguments, normalize_batch
from .eager import checked, run, torchs_own


class BatchNorm1d(torch.nn.BatchNorm1d):
    """torch.nn.BatchNorm1d of [N, C] or [N, C, L], run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return _normalized(self, input)


class BatchNorm2d(torch.nn.BatchNorm2d):
    """torch.nn.BatchNorm2d of maps [N, C, H, W], run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        return _normalized(self, input)


def _normalized(layer: _BatchNorm, x: Tensor) -> Tensor:
    """What torch's layer computes and tracks, in its mode; of no samples and proxies by torch."""
    if torchs_own(x):
        return normalize_batch(layer, x)
    layer._check_input_dim(x)
    if x.numel() == 0:
        return normalize_batch(layer, x)
    mean, var, weight, bias, training, momentum, eps, count, _ = batch_norm_arguments(layer)
    if training and x.numel() == x.shape[1]:
        raise ValueError(f"a batch of shape {tuple(x.shape)} has one value a channel: no variance")
    settings = {"training": training, "momentum": momentum, "eps": eps}
    state = (mean, var, count)
    return run("batch_norm", checked(x), weight, bias, attrs=settings, state=state)

"""Softmax over channels, and its logarithm, over the kernels."""

import torch
from torch import Tensor

from ..kernels.pointwise.softmax import MOST_CHANNELS
from .eager import checked, run, torchs_own


class Softmax(torch.nn.Softmax):
    """torch.nn.Softmax, run by tvdnn's kernels over channels; over others by torch."""

    def forward(self, input: Tensor) -> Tensor:
        if _is_torchs(input, self.dim):
            return super().forward(input)
        return run("softmax", checked(input), attrs={"channels": input.shape[1]})


class LogSoftmax(torch.nn.LogSoftmax):
    """torch.nn.LogSoftmax, run by tvdnn's kernels over channels; over others by torch."""

    def forward(self, input: Tensor) -> Tensor:
        if _is_torchs(input, self.dim):
            return super().forward(input)
        return run("log_softmax", checked(input), attrs={"channels": input.shape[1]})


def _is_torchs(x: Tensor, dim: int | None) -> bool:
    over_channels = x.dim() in (2, 4) and dim in (1, 1 - x.dim())
    return torchs_own(x) or not over_channels or x.shape[1] > MOST_CHANNELS

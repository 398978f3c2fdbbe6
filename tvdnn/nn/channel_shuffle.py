"""Channel shuffle over the kernels."""

import torch
from torch import Tensor

from .eager import checked, run, torchs_own


class ChannelShuffle(torch.nn.ChannelShuffle):
    """torch.nn.ChannelShuffle of maps [N, C, H, W], run by tvdnn's kernels (ShuffleNet, 2018)."""

    def forward(self, input: Tensor) -> Tensor:
        refused = input.dim() != 4 or input.shape[1] % self.groups
        if torchs_own(input) or refused:
            return super().forward(input)
        return run("shuffle_channels", checked(input), attrs={"groups": self.groups})

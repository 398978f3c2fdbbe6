"""Local response normalisation over the kernels."""

import torch
from torch import Tensor

from .eager import checked_map, run, torchs_own


class LocalResponseNorm(torch.nn.LocalResponseNorm):
    """torch.nn.LocalResponseNorm of maps [N, C, H, W], run by tvdnn's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        if torchs_own(input):
            return super().forward(input)
        settings = {"size": self.size, "alpha": self.alpha, "beta": self.beta, "k": self.k}
        return run("local_response_norm", checked_map(input), attrs=settings)

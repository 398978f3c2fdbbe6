"""Dropout over the kernels: a mask is a seed, and backward makes it again."""

import torch
from torch import Tensor

from ..errors import InputError
from ..functional import stochastic_depth
from .activation import activate
from .eager import checked, run, torchs_own


class Dropout(torch.nn.Dropout):
    """torch.nn.Dropout, run by tvdnn's kernels; nothing is kept for backward but a seed."""

    def forward(self, input: Tensor) -> Tensor:
        if torchs_own(input) or input.dim() == 0:
            return super().forward(input)
        if not self.training or self.p == 0:
            return input
        attrs = {"p": self.p, "op_id": 0}
        return activate("dropout", input, attrs=attrs, seed=_seed(input), inplace=self.inplace)


class Dropout2d(torch.nn.Dropout2d):
    """torch.nn.Dropout2d of maps [N, C, H, W], run by tvdnn's kernels; in place by torch."""

    def forward(self, input: Tensor) -> Tensor:
        if torchs_own(input) or input.dim() != 4 or self.inplace:
            return super().forward(input)
        return drop_parts(input, self.p, "channel", self.training)


class StochasticDepth(torch.nn.Module):
    """Drops what a residual branch makes of samples, by themselves ("row") or together ("batch").

    Huang et al., Deep Networks with Stochastic Depth, 2016. It has the arguments of torchvision's:
    each falls with probability `p`, and what stays is divided by 1 - p; nothing happens in eval.
    """

    def __init__(self, p: float, mode: str) -> None:
        super().__init__()
        if not 0 <= p <= 1 or mode not in ("row", "batch"):
            raise InputError(f"p is {p} and mode {mode!r}; give 0 to 1, and row or batch")
        self.p, self.mode = p, mode

    def forward(self, input: Tensor) -> Tensor:
        if torchs_own(input) or input.dim() not in (2, 4):
            return stochastic_depth(input, self.p, self.mode, self.training)
        return drop_parts(input, self.p, self.mode, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}, mode={self.mode}"


def drop_parts(x: Tensor, p: float, part: str, training: bool) -> Tensor:
    """`x` of which each "channel" of a sample, each "row" or the "batch" falls."""
    if not training or p == 0:
        return x
    settings = {"part": part, "p": p, "channels": x.shape[1], "op_id": 0}
    return run("dropout_parts", checked(x), attrs=settings, seed=_seed(x))


def _seed(x: Tensor) -> Tensor:
    """A seed of the call's own, which torch's generator draws."""
    return torch.randint(2**63 - 1, (1,), device=x.device)

"""Networks that drop channels and branches: the same draws forward and backward."""

import torch
from torch import Tensor, nn

import tvdnn
from tests.networks.case import EXACT, NetworkCase

CLASSES = 3


class StochasticDepth(nn.Module):
    """Stands for torchvision's, which draws by torch."""

    def __init__(self, p: float, mode: str) -> None:
        super().__init__()
        self.p, self.mode = p, mode

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.empty(len(x), 1, 1, 1).bernoulli_(1 - self.p)


StochasticDepth.__module__ = "torchvision.ops.stochastic_depth"


class ByHand(nn.Module):
    """Stochastic depth as networks write it that have no layer for it."""

    def __init__(self, keep: float) -> None:
        super().__init__()
        self.keep = keep

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        mask = torch.floor(self.keep + torch.rand(len(x), 1, 1, 1, dtype=x.dtype, device=x.device))
        return x / self.keep * mask


class Branched(nn.Module):
    """Residual branches that fall, and dropped channels."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))
        falling = [StochasticDepth(0.5, "row"), tvdnn.nn.StochasticDepth(0.4, "batch"), ByHand(0.6)]
        self.falling = nn.ModuleList([*falling, nn.Dropout2d(0.3)])
        self.head = nn.Linear(100, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for conv, falls in zip(self.convs, self.falling, strict=True):
            x = x + falls(torch.relu(conv(x)))
        return self.head(x.flatten(1))


NETWORKS = {
    "branched": NetworkCase(
        Branched,
        (4, 5, 5),
        batch=6,
        classes=CLASSES,
        chunk_size=400,
        runs=(EXACT._replace(steps=3),),
        gradients=False,
    ),
}

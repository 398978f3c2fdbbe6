"""Networks of batch normalization, before and behind sums, ReLUs and concatenations."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.networks.case import EXACT, HALF, MOVED, NetworkCase
from tests.support.networks import activations

SHAPE, CLASSES = (3, 6, 6), 4


class Residual(nn.Module):
    """Normalization before a ReLU, into a sum, of both of its terms, and of features."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.first = nn.BatchNorm2d(8, **settings)
        self.conv = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.second = nn.BatchNorm2d(8, **settings)
        self.down = nn.Conv2d(8, 8, 1, bias=False)
        self.side = nn.BatchNorm2d(8, **settings)
        self.last = nn.BatchNorm2d(8, **settings)
        self.features = nn.Linear(288, 10)
        self.norm = nn.BatchNorm1d(10, **settings)
        self.head = nn.Linear(10, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.first(self.stem(x)))
        x = functional.relu(self.second(self.conv(x)) + self.side(self.down(x)))
        x = functional.relu(self.last(self.conv(x)) + x)
        return self.head(self.norm(self.features(x.flatten(1))))


def residual(**settings: Any) -> Residual:
    net = Residual(**settings)
    for param in net.parameters():
        if param.dim() == 1:
            nn.init.uniform_(param, 0.5, 1.5)
    return net


class Dense(nn.Module):
    """Normalization of a concatenation, and between the terms of another one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for channels in (8, 12, 16))
        self.convs = nn.ModuleList(nn.Conv2d(channels, 4, 3, padding=1) for channels in (8, 12, 16))
        self.last = nn.BatchNorm2d(4)
        self.head = nn.Linear(8 * 36, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        maps = [self.stem(x)]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            maps.append(conv(functional.relu(norm(torch.cat(maps, 1)))))
        *_, first, second = maps
        joined = torch.cat([self.last(first), functional.relu(self.last(second))], 1)
        return self.head(joined.flatten(1))


def frozen(net: Residual) -> Residual:
    """Two layers are in evaluation. One of them still trains."""
    net.side.eval()
    net.last.eval().requires_grad_(False)
    return net


def activated() -> nn.Sequential:
    """Every activation function behind a normalization."""
    blocks = [(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4), each) for each in activations()]
    layers = (nn.Conv2d(3, 4, 1), *(layer for block in blocks for layer in block))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(144, CLASSES))


POLICIES = (
    MOVED,
    *({"policy": policy} for policy in ("vdnn-all:p", "superneurons:memory", "auto")),
    {"policy": "auto", "allow": "lossy:1e-7"},  # no codec is within this: ReLUs mask by signs
)
NETWORKS = {
    name: NetworkCase(make, SHAPE, runs=(EXACT, HALF), policies=POLICIES, atol=3e-5)
    for name, make in {
        "residual": residual,
        "frozen": lambda: frozen(residual()),
        "dense": Dense,
        "activated": activated,
    }.items()
}

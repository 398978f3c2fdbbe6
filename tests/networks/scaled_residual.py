"""Networks whose branches are scaled by channel, or dropped by parts, and added to a residual."""

import torch
from torch import Tensor, nn

import tvdnn
from tests.networks.case import EXACT, HALF, LEAST, MOVED, TENSOR, NetworkCase, Run
from tests.networks.dropout import StochasticDepth

CLASSES = 4


class Scaled(nn.Module):
    """A branch times a learned scale of each channel, of which parts may fall."""

    def __init__(self, channels: int, falls: nn.Module | None, *, trains: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 1)
        self.scale = nn.Parameter(torch.rand(channels, 1, 1), requires_grad=trains)
        self.falls = falls

    def forward(self, x: Tensor) -> Tensor:
        branch = self.scale * self.conv(x)
        return x + (branch if self.falls is None else self.falls(branch))


class Blocks(nn.Module):
    """Blocks behind a stem. The last adds a branch of which parts fall, and no more."""

    def __init__(self, channels: int, *blocks: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, 2, 1)
        self.blocks = nn.Sequential(*blocks)
        self.last, self.falls = nn.Conv2d(channels, channels, 1), tvdnn.nn.Dropout2d(0.4)
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))
        x = self.falls(self.last(x)) + x
        return self.head(x.mean((2, 3)))


def falling() -> nn.Module:
    parts = StochasticDepth(0.5, "row"), tvdnn.nn.StochasticDepth(0.3, "batch")
    return Blocks(24, *(Scaled(24, part) for part in parts), Scaled(24, None, trains=False))


def standing() -> nn.Module:
    return Blocks(18, Scaled(18, None), Scaled(18, tvdnn.nn.StochasticDepth(0.5, "row")))


class Whole(nn.Module):
    """Nothing falls: torch draws no other numbers, and gradients can be compared.

    A scale is used twice, and once in each of two blocks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 20, 3, 2, 1), nn.Linear(20, CLASSES)
        self.blocks = nn.Sequential(Scaled(20, None), Scaled(20, None, trains=False))
        self.last = Scaled(20, None)
        self.last.scale = self.blocks[0].scale

    def forward(self, x: Tensor) -> Tensor:
        x = self.last(self.blocks(self.stem(x)))
        return self.head((self.last.scale * x).mean((2, 3)))


class Concatenated(nn.Module):
    """Sums that lie in a concatenation, as do their gradients. The residual is the input."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled, self.last = Scaled(16, None), nn.Conv2d(16, 16, 1)
        self.falls, self.other = tvdnn.nn.StochasticDepth(0.4, "row"), nn.Conv2d(16, 16, 1)
        self.head = nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        sums = [self.scaled(x), x + self.falls(self.last(x))]
        x = torch.cat([*sums, self.other(sums[0])], 1)
        return self.head(torch.sigmoid(x).mean((2, 3)))


RUNS = (HALF, EXACT, TENSOR, Run("bf16", kernels="triton", samples=3, steps=2))
POLICIES = ({"policy": "auto"}, LEAST, MOVED)
SIDES = {"shape": (3, 8, 8), "chunk_size": 2048, "policies": POLICIES}
NETWORKS = {
    "falling": NetworkCase(falling, **SIDES, runs=RUNS, gradients=False),
    "padded": NetworkCase(standing, **SIDES, runs=RUNS, gradients=False),
    "concatenated": NetworkCase(
        Concatenated, (16, 6, 6), chunk_size=2048, policies=POLICIES, runs=RUNS, gradients=False
    ),
    "whole": NetworkCase(Whole, **SIDES, runs=(*RUNS, Run("fp32", kernels="triton", samples=3))),
}

"""Networks with Gist's pairs of layers, whose maps have whole bytes of codes."""

from functools import partial

import torch
from torch import Tensor, nn

from tests.networks.case import EXACT, HALF, MOVED, STORED, TENSOR, NetworkCase, Run

POLICIES = (
    MOVED,
    STORED,
    *({"policy": f"gist-lossless{suffix}"} for suffix in (":fused", ":tf32", ":fused:tf32")),
    *({"policy": f"gist-lossless:{codec}"} for codec in ("ssdc=1", "ssdc=50", "bitmap=60")),
    {"policy": "gist-lossless:fused:bitmap=0"},
)


def pairs() -> nn.Sequential:
    """ReLU and pooling of 3x3 and of 2x2, ReLU and convolution, pooling and convolution."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 16),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(16, 4),
    )


class Forked(nn.Module):
    """ReLUs that a pooling and another layer read, and poolings of their sum and concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.third, self.pool = nn.Conv2d(8, 16, 1), nn.MaxPool2d(3, stride=1, padding=1)
        self.last = nn.Linear(24 * 4 * 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        y = self.pool((self.second(y).relu() + self.pool(y)).relu())
        y = self.pool(torch.cat([y, self.third(y).relu()], 1).relu())
        return self.last(nn.functional.max_pool2d(y, 2).flatten(1))


class Joined(nn.Module):
    """A pooling of joined ReLUs, of which one has a second reader and lies there as a copy."""

    def __init__(self, *, forked: bool) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(3, 8, 1)
        self.pool, self.next = nn.MaxPool2d(3, stride=2, padding=1), nn.Conv2d(32, 8, 1)
        self.last, self.forked = nn.Linear(8 * 4 * 4, 4), forked

    def forward(self, x: Tensor) -> Tensor:
        narrow = self.narrow(x).relu()
        y = self.next(self.pool(torch.cat([narrow, self.wide(x).relu()], 1)))
        y = y + self.pool(narrow) if self.forked else y
        return self.last(y.flatten(1))


_RUNS = (EXACT, HALF, TENSOR)
_INTERPRETED = Run("bf16", "triton", samples=2, steps=1)
NETWORKS = {
    "pairs": NetworkCase(
        pairs, (3, 8, 8), runs=(*_RUNS, _INTERPRETED), policies=POLICIES, gradients=False
    ),
    "forked": NetworkCase(Forked, (3, 8, 8), runs=_RUNS, policies=POLICIES),
    **{
        f"joined{', forked' * forked}": NetworkCase(
            partial(Joined, forked=forked), (3, 8, 8), runs=_RUNS, policies=POLICIES
        )
        for forked in (False, True)
    },
}

"""Networks whose filters are buffers."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.networks.case import EXACT, HALF, MOVED, TENSOR, NetworkCase

CLASSES = 4


class Filters(nn.Module):
    """Filters of every kind in buffers, between convolutions that train."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 4, 1)
        self.head = nn.Linear(4 * 2 * 3, CLASSES)
        self.register_buffer("full", torch.randn(6, 6, 3, 3) / 8)
        self.register_buffer("shift", torch.randn(6))
        self.register_buffer("grouped", torch.randn(6, 2, 3, 3) / 4)
        self.register_buffer("lines", torch.randn(6, 6, 3) / 4)
        self.register_buffer("blur", (torch.ones(1, 1, 3, 3) / 9).expand(6, 1, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.first(x))
        x = functional.relu(functional.conv2d(x, self.full, self.shift, padding=1))
        x = functional.conv2d(x, self.grouped, padding="same", groups=3)
        x = functional.conv1d(x.flatten(2), self.lines, padding=1).view_as(x)
        for _ in range(2):
            x = functional.pad(x, (1, 1, 1, 1), mode="reflect")
            x = functional.conv2d(x, self.blur, stride=2, groups=6)
        return self.head(self.second(x).flatten(1))


POLICIES = (MOVED, {"policy": "tvdnn-heuristic"})
NETWORKS = {
    "filters": NetworkCase(
        Filters, (3, 8, 10), chunk_size=900, runs=(EXACT, HALF, TENSOR), policies=POLICIES
    ),
}

"""A small network with dropout, virtualized and beside torch."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.running import Batch, random_batches
from tvdnn.engine import Virtualized, virtualize

BATCH, SHAPE, CLASSES = 6, (3, 8, 8), 4
CHUNK_SIZE = 3000
RTOL, ATOL = 1e-4, 1e-6  # of gradients, relative to fp32's 1.2e-7 a rounding


class Net(nn.Module):
    """Two convolutions, a pooling and two linear layers; `dropout` before the last."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 6, 3, stride=2)
        self.pool = nn.MaxPool2d(2, stride=1)
        self.dropout = nn.Dropout(dropout)
        self.fc1 = nn.Linear(24, 10)
        self.fc2 = nn.Linear(10, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        return self.pool(torch.relu(self.conv2(torch.relu(self.conv1(x)))))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.fc1(self.features(x).flatten(1)))
        return self.fc2(self.dropout(hidden))


class Pair(Net):
    """Returns maps from inside the network beside its logits."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        inner = self.conv2(torch.relu(self.conv1(x)))
        hidden = torch.relu(self.fc1(self.pool(torch.relu(inner)).flatten(1)))
        return inner, self.fc2(hidden)


def batches_of(count: int, size: int = BATCH, seed: int = 1) -> list[Batch]:
    return random_batches(count, (size, *SHAPE), CLASSES, seed)


def virtual(net: nn.Module, **options: Any) -> Virtualized:
    options = {"policy": "vdnn-all", "chunk_size": CHUNK_SIZE, "order_seed": 2} | options
    return virtualize(net, torch.empty(BATCH, *SHAPE), **options)


def twins(**options: Any) -> tuple[Virtualized, Net]:
    """A virtualized network, and its twin that torch runs."""
    net = Net()
    return virtual(net, **options), copy.deepcopy(net)


def loss_of(net: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return functional.cross_entropy(net(x), y)


def assert_close(mine: Tensor, theirs: Tensor, what: str = "") -> None:
    torch.testing.assert_close(mine, theirs, rtol=RTOL, atol=ATOL, msg=what or None)


def assert_same_gradients(net: nn.Module, twin: nn.Module) -> None:
    for (name, mine), theirs in zip(net.named_parameters(), twin.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None), name
        if theirs.grad is not None:
            assert_close(mine.grad, theirs.grad, name)

"""A network that may change its own parameters and buffers in forward."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Way = Callable[["Net", Tensor], Tensor]
SHAPE = (4, 4, 6, 5)


class Net(nn.Module):
    """Layers and buffers that `way` uses."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.register_buffer("ema", torch.arange(4.0))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("image", torch.linspace(0, 1, 4).view(1, 4, 1, 1).clone())
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


def ahead(*changes: Callable[[Net], object]) -> Way:
    """A forward that makes changes before its layers."""

    def way(net: Net, x: Tensor) -> Tensor:
        for change in changes:
            change(net)
        return net.norm(net.conv(x) + net.image).relu()

    return way


def decay(net: Net) -> None:
    net.ema.mul_(0.9).add_(0.5)


def forget_statistics(net: Net) -> None:
    net.norm.running_mean.mul_(0.5)
    net.norm.num_batches_tracked.zero_()


def assert_same(before: dict[str, Tensor], now: dict[str, Tensor]) -> None:
    assert before.keys() == now.keys()
    for name, value in now.items():
        assert torch.equal(before[name], value), name

"""Networks that concatenate maps, and take parts of them."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.networks.case import EXACT, HALF, MOVED, NetworkCase, Run
from tests.support.networks import Dense

SHAPE, CLASSES = (3, 6, 6), 4


class Inception(nn.Module):
    """GoogLeNet's block: branches over one map side by side, rectified; the last is pooled."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.left = nn.Conv2d(channels, 3, 1)
        self.middle = nn.Sequential(nn.Conv2d(channels, 2, 1), nn.ReLU(), nn.Conv2d(2, 5, 3, 1, 1))
        self.right = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(channels, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        branches = (self.left(x), self.middle(x), self.right(x))
        return torch.cat([torch.relu(branch) for branch in branches], 1)


class Recent(nn.Module):
    """A dense block whose layers take the newest channels. All reads are of ranges."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(size, size, 3, padding=1) for size in (2, 3, 2))

    def forward(self, x: Tensor) -> Tensor:
        features = [x[:, 1:]]
        for layer in self.layers:
            joined = torch.cat(features, 1)
            newest = joined[:, -layer.in_channels :]
            features.append(layer(newest) + newest)
        return torch.cat(features, 1)


class Skip(nn.Module):
    """U-Net's skip, without its scales: the upward map joins the downward one."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(channels, 4, 3, padding=1)
        self.up = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        skip = torch.relu(self.down(x))
        return torch.cat((skip, self.up(skip)), dim=1)


class Shuffle(nn.Module):
    """ShuffleNet's unit: half of the channels pass by, the others go through; ranges overlap."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels - channels // 2, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.split([x.shape[1] // 2, x.shape[1] - x.shape[1] // 2], 1)
        return torch.cat((left, self.conv(right), x[:, 1:], x.narrow(1, 0, 2), left), 1)


def blocks() -> nn.Sequential:
    """One block behind the other; the first reads the network's input."""
    layers = (Inception(3), Dense(10, 2, 4), Skip(18), Shuffle(8), Recent())
    return nn.Sequential(*layers, nn.Conv2d(26, 4, 1), nn.Flatten(), nn.Linear(144, CLASSES))


def last_block() -> nn.Sequential:
    return nn.Sequential(Recent(), nn.Conv2d(9, 4, 1), nn.Flatten(), nn.Linear(144, CLASSES))


class Wide(nn.Module):
    """Branches of eight channels, as convolutions take them in ranges: SqueezeNet's and U-Net's.

    A convolution reads what lies in a range, another is one's maker; both are plain and rectified.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU())
        self.down = nn.Conv2d(8, 16, 2, 2)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2, output_padding=1)
        self.own = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.last = nn.Conv2d(24, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        left = self.first(x)
        right = self.up(torch.relu(self.down(left)))
        y: Tensor = self.last(torch.cat((left, right, self.own(left)), 1))
        return y


def wide() -> nn.Sequential:
    return nn.Sequential(Wide(), nn.Flatten(), nn.Linear(36, CLASSES))


class Split(nn.Module):
    """Res2Net's block: parts of a map go through convolutions of their own, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 24, 1), nn.ReLU())
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        left, middle, right = self.first(x).chunk(3, 1)
        y = torch.relu(self.convs[0](middle))
        return torch.cat((functional.max_pool2d(left, 3, 1, 1), y, self.convs[1](right) + y), 1)


def split() -> nn.Sequential:
    return nn.Sequential(Split(), nn.Conv2d(24, 2, 1), nn.Flatten(), nn.Linear(72, CLASSES))


class Flat(nn.Module):
    """Concatenates the pixels of maps that a convolution, a normalization and pooling make."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 6)
        self.norm = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8))
        self.pool = nn.Sequential(nn.Conv2d(3, 8, 1), nn.AdaptiveAvgPool2d(1))

    def forward(self, x: Tensor) -> Tensor:
        maps = (self.conv(x), self.norm(x).permute(0, 2, 3, 1), self.pool(x))
        return torch.cat([each.flatten(1) for each in maps], 1)


POLICIES = (
    MOVED,
    *({"policy": policy} for policy in ("vdnn-dyn", "vdnn-conv:p", "superneurons:memory", "auto")),
)
NETWORKS = {
    "blocks": NetworkCase(blocks, SHAPE, runs=(EXACT, HALF), policies=POLICIES),
    "last block": NetworkCase(last_block, SHAPE, runs=(Run("tf32", "triton", samples=3, steps=1),)),
    "ranges of eight channels": NetworkCase(wide, SHAPE, runs=(EXACT,)),
    "parts": NetworkCase(split, SHAPE, runs=(EXACT,)),
    "flattened maps": NetworkCase(lambda: nn.Sequential(Flat(), nn.Linear(88, CLASSES)), SHAPE),
}

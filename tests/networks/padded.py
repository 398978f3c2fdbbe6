"""Networks of 16 channels or more that fill no whole 16 bytes, whose maps are padded."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.networks.case import EXACT, HALF, LEAST, MOVED, STORED, TENSOR, NetworkCase, Run

SHAPE, CLASSES, OBJECTS = (3, 8, 8), 4, 21


def _conv(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Resolutions(nn.Module):
    """HRNet's unit: two resolutions, each of which the other adds to."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = _conv(3, 18), _conv(18, 36, 3, 2)
        self.down, self.up = _conv(18, 36, 3, 2), _conv(36, 18, 1)
        self.last = nn.Conv2d(54, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = torch.relu(self.fine(x))
        coarse = torch.relu(self.coarse(fine))
        small = torch.relu(coarse + self.down(fine))
        large = torch.relu(fine + functional.interpolate(self.up(coarse), scale_factor=2.0))
        joined = torch.cat((large, functional.interpolate(small, scale_factor=2.0)), 1)
        y: Tensor = self.last(joined).mean((2, 3))
        return y


class Parts(nn.Module):
    """Res2Net's unit: parts of a map go through convolutions one after the other, and join."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = _conv(3, 51, 1), _conv(51, 20, 1)
        self.convs = nn.ModuleList(_conv(17, 17) for _ in range(2))
        self.classes = nn.Linear(20, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        left, middle, right = torch.relu(self.first(x)).split(17, 1)
        middle = torch.relu(self.convs[0](middle))
        right = torch.relu(self.convs[1](right + middle))
        y = torch.relu(self.last(torch.cat((left, middle, right), 1)))
        z: Tensor = self.classes(y.mean((2, 3)))
        return z


class Growing(nn.Module):
    """ReXNet's unit: a gated depthwise layer, and a shortcut to the first of more channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.wide, self.own = (
            _conv(3, 19, 3, 2),
            _conv(19, 34, 1),
            _conv(34, 34, 3, 1, 34),
        )
        self.squeeze, self.excite = nn.Conv2d(34, 5, 1), nn.Conv2d(5, 34, 1)
        self.narrow, self.classes = _conv(34, 21, 1), nn.Linear(21, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu6(self.first(x))
        y = self.own(functional.silu(self.wide(x)))
        means = y.mean((2, 3), keepdim=True)
        y = y * torch.sigmoid(self.excite(torch.relu(self.squeeze(means))))
        y = self.narrow(functional.relu6(y))
        y = torch.cat((y[:, :19] + x, y[:, 19:]), 1)
        z: Tensor = self.classes(functional.max_pool2d(y, 2).mean((2, 3)))
        return z


class Shuffled(nn.Module):
    """ShuffleNet's unit: half of the channels pass by, and both halves are shuffled."""

    def __init__(self) -> None:
        super().__init__()
        self.first = _conv(3, 36)
        self.convs = nn.ModuleList((_conv(18, 18, 1), _conv(18, 18, 3, 1, 18), _conv(18, 18, 1)))
        self.classes = nn.Linear(36, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        left, right = torch.relu(self.first(x)).chunk(2, 1)
        right = torch.relu(self.convs[0](right))
        right = torch.relu(self.convs[2](self.convs[1](right)))
        y = functional.channel_shuffle(torch.cat((left, right), 1), 2)
        z: Tensor = self.classes(y.mean((2, 3)))
        return z


class Segmentation(nn.Module):
    """FCN's end (Long et al. 2015): classes of coarse pixels, resized to those of the image."""

    def __init__(self, mode: str = "bilinear") -> None:
        super().__init__()
        self.mode = mode
        self.coarse, self.pooled = _conv(3, 16, 3, 2), nn.Conv2d(16, 8, 1)
        self.last = nn.Conv2d(24, OBJECTS, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.coarse(x))
        means = torch.relu(self.pooled(x.mean((2, 3), keepdim=True)))
        wide = functional.interpolate(means, size=x.shape[2:], mode="bilinear")
        return functional.interpolate(
            self.last(torch.cat((x, wide), 1)), scale_factor=2.0, mode=self.mode
        )


class Pixels(nn.Module):
    """Classes of pixels that a convolution makes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = _conv(3, 16), nn.Conv2d(16, OBJECTS, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(torch.relu(self.first(x)))
        return y


TRITON = Run("bf16", "triton", samples=3, steps=1)
POLICIES = (MOVED, STORED, LEAST, {"policy": "superneurons:memory"})
OF_PIXELS: dict[str, Any] = {"classes": OBJECTS, "pixels": True, "policies": POLICIES}
NETWORKS = {
    "two resolutions": NetworkCase(
        Resolutions, SHAPE, runs=(EXACT, HALF, TRITON), policies=POLICIES
    ),
    "parts of 17": NetworkCase(Parts, SHAPE, runs=(EXACT, TRITON), policies=POLICIES),
    "growing": NetworkCase(Growing, SHAPE, runs=(EXACT, TENSOR, TRITON), policies=POLICIES),
    "segmentation": NetworkCase(
        Segmentation, SHAPE, runs=(EXACT, HALF, TENSOR, TRITON), **OF_PIXELS
    ),
    "nearest segmentation": NetworkCase(
        partial(Segmentation, "nearest"), SHAPE, runs=(TRITON,), **OF_PIXELS
    ),
    "pixels of 21 classes": NetworkCase(Pixels, SHAPE, runs=(EXACT, TRITON), **OF_PIXELS),
    "shuffled": NetworkCase(Shuffled, SHAPE, runs=(EXACT, TRITON), policies=POLICIES),
}

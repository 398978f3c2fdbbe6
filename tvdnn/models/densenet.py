"""DenseNet (Huang et al., 2017) as torchvision lays it out."""

from functools import partial

import torch
from torch import Tensor

from .. import nn
from .convnet import scaled

INNER = 4  # times the growth: the channels between a layer's convolutions


class DenseLayer(torch.nn.Module):
    """A 1x1 and a 3x3 convolution, each behind normalization and ReLU, over all maps so far."""

    def __init__(self, in_channels: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(in_channels)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(in_channels, INNER * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(INNER * growth)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(INNER * growth, growth, 3, padding=1, bias=False)

    def forward(self, maps: list[Tensor]) -> Tensor:
        x = self.conv1(self.relu1(self.norm1(torch.cat(maps, 1))))
        y: Tensor = self.conv2(self.relu2(self.norm2(x)))
        return y


class DenseBlock(torch.nn.Module):
    """Layers of which each reads the block's input and what all layers before it made."""

    def __init__(self, count: int, in_channels: int, growth: int) -> None:
        super().__init__()
        for index in range(count):
            layer = DenseLayer(in_channels + index * growth, growth)
            self.add_module(f"denselayer{index + 1}", layer)

    def forward(self, x: Tensor) -> Tensor:
        maps = [x]
        for layer in self.children():
            maps.append(layer(maps))
        return torch.cat(maps, 1)


class DenseNet(torch.nn.Module):
    """Four dense blocks of `counts` layers under torchvision's names, so that its checkpoints fit.

    Each layer adds `growth` channels to the `first` of the first convolution; `width` scales both.
    """

    def __init__(
        self,
        counts: tuple[int, int, int, int],
        growth: int,
        first: int,
        num_classes: int = 1000,
        *,
        in_channels: int = 3,
        width: float = 1.0,
    ) -> None:
        super().__init__()
        channels, growth = scaled(first, width, multiple=2), scaled(growth, width, multiple=2)
        self.features = nn.Sequential()
        self.features.add_module(
            "conv0", nn.Conv2d(in_channels, channels, 7, stride=2, padding=3, bias=False)
        )
        self.features.add_module("norm0", nn.BatchNorm2d(channels))
        self.features.add_module("relu0", nn.ReLU(inplace=True))
        self.features.add_module("pool0", nn.MaxPool2d(3, stride=2, padding=1))
        for number, count in enumerate(counts, 1):
            block = DenseBlock(count, channels, growth)
            self.features.add_module(f"denseblock{number}", block)
            channels += count * growth
            if number < len(counts):
                self.features.add_module(f"transition{number}", _transition(channels))
                channels //= 2
        self.features.add_module("norm5", nn.BatchNorm2d(channels))
        self.relu = nn.ReLU(inplace=True)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, num_classes)
        self.apply(_initialize)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, classes] of images [N, C, H, W]."""
        x = self.avgpool(self.relu(self.features(x)))
        y: Tensor = self.classifier(torch.flatten(x, 1))
        return y


def _transition(channels: int) -> torch.nn.Module:
    """Half the channels, and a quarter of the pixels."""
    layers = nn.Sequential()
    layers.add_module("norm", nn.BatchNorm2d(channels))
    layers.add_module("relu", nn.ReLU(inplace=True))
    layers.add_module("conv", nn.Conv2d(channels, channels // 2, 1, bias=False))
    layers.add_module("pool", nn.AvgPool2d(2, stride=2))
    return layers


def _initialize(module: torch.nn.Module) -> None:
    if isinstance(module, torch.nn.Conv2d):
        torch.nn.init.kaiming_normal_(module.weight)
    elif isinstance(module, torch.nn.Linear):
        torch.nn.init.zeros_(module.bias)


densenet121 = partial(DenseNet, (6, 12, 24, 16), 32, 64)
densenet161 = partial(DenseNet, (6, 12, 36, 24), 48, 96)
densenet169 = partial(DenseNet, (6, 12, 32, 32), 32, 64)
densenet201 = partial(DenseNet, (6, 12, 48, 32), 32, 64)

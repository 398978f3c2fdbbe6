"""ResNet (He et al., 2016) and its wider forms as torchvision lays them out, and very deep ones.

ResNeXt is Xie et al.'s (2017), Wide ResNet Zagoruyko and Komodakis's (2016). SuperNeurons (Wang et
al., 2018) repeats bottlenecks in the third group until device memory is full.
"""

from functools import partial
from typing import Final, TypeAlias

import torch
from torch import Tensor

from .. import nn
from .convnet import scaled

CHANNELS: Final = (64, 128, 256, 512)
DEEP: Final = (6, 32, 6)  # bottlenecks of SuperNeurons' first, second and last group
SHALLOWEST: Final = 3 * (sum(DEEP) + 1) + 2  # of its depths


class BasicBlock(torch.nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(
        self, in_channels: int, channels: int, inner: int, stride: int, groups: int
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = _shortcut(in_channels, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.downsample(x) if self.downsample is not None else x
        z: Tensor = self.relu(y)
        return z


class Bottleneck(torch.nn.Module):
    """A 3x3 convolution of `inner` channels between two of 1x1, beside a shortcut."""

    expansion = 4

    def __init__(
        self, in_channels: int, channels: int, inner: int, stride: int, groups: int
    ) -> None:
        super().__init__()
        out_channels = channels * self.expansion
        self.conv1 = nn.Conv2d(in_channels, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += self.downsample(x) if self.downsample is not None else x
        z: Tensor = self.relu(y)
        return z


def _shortcut(in_channels: int, out_channels: int, stride: int) -> torch.nn.Module | None:
    """What brings a block's input to the shape of its result; None where it has it."""
    if stride == 1 and in_channels == out_channels:
        return None
    conv = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels))


Block: TypeAlias = type[BasicBlock] | type[Bottleneck]


class ResNet(torch.nn.Module):
    """Four groups of blocks under torchvision's names, so that its checkpoints fit.

    `counts` are the blocks of each group, `inner` the share of their channels that the 3x3
    convolutions of bottlenecks have, in `groups`; `width` scales every hidden layer.
    """

    def __init__(
        self,
        block: Block,
        counts: tuple[int, int, int, int],
        num_classes: int = 1000,
        *,
        in_channels: int = 3,
        inner: float = 1.0,
        groups: int = 1,
        width: float = 1.0,
    ) -> None:
        super().__init__()
        channels = scaled(CHANNELS[0], width)
        self.conv1 = nn.Conv2d(in_channels, channels, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        layers = []
        for number, count in enumerate(counts):
            planes = scaled(CHANNELS[number], width)
            middle = scaled(CHANNELS[number] * inner, width, multiple=groups)
            blocks: list[torch.nn.Module] = []
            for index in range(count):
                stride = 2 if number > 0 and index == 0 else 1
                blocks.append(block(channels, planes, middle, stride, groups))
                channels = planes * block.expansion
            layers.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = layers
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, num_classes)
        self.apply(_initialize)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, classes] of images [N, C, H, W]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        y: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return y


def _initialize(module: torch.nn.Module) -> None:
    if isinstance(module, torch.nn.Conv2d):
        torch.nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def deep_resnet(
    depth: int, num_classes: int = 1000, *, in_channels: int = 3, width: float = 1.0
) -> ResNet:
    """SuperNeurons' ResNet of at least `depth` layers: 6, 32, n and 6 bottlenecks.

    Its layers are 3 (6 + 32 + n + 6) + 2, which n sets in steps of three: 1920 asks for n = 596
    (1922 layers), 2500 for n = 789 (2501).
    """
    first, second, last = DEEP
    third = -(-(depth - 2) // 3) - sum(DEEP)
    counts = (first, second, third, last)
    return ResNet(Bottleneck, counts, num_classes, in_channels=in_channels, width=width)


resnet18 = partial(ResNet, BasicBlock, (2, 2, 2, 2))
resnet34 = partial(ResNet, BasicBlock, (3, 4, 6, 3))
resnet50 = partial(ResNet, Bottleneck, (3, 4, 6, 3))
resnet101 = partial(ResNet, Bottleneck, (3, 4, 23, 3))
resnet152 = partial(ResNet, Bottleneck, (3, 8, 36, 3))
resnext50_32x4d = partial(ResNet, Bottleneck, (3, 4, 6, 3), groups=32, inner=2.0)
resnext101_32x8d = partial(ResNet, Bottleneck, (3, 4, 23, 3), groups=32, inner=4.0)
wide_resnet50_2 = partial(ResNet, Bottleneck, (3, 4, 6, 3), inner=2.0)
wide_resnet101_2 = partial(ResNet, Bottleneck, (3, 4, 23, 3), inner=2.0)
resnet1920 = partial(deep_resnet, 1920)
resnet2500 = partial(deep_resnet, 2500)
resnet3840 = partial(deep_resnet, 3840)

"""The frame that the classifying networks share: features, average pooling, classifier."""

from collections.abc import Iterable

import torch
from torch import Tensor

from .. import nn


class ConvNet(torch.nn.Module):
    """A network of three parts under torchvision's names, so that their checkpoints fit."""

    def __init__(
        self,
        features: Iterable[torch.nn.Module],
        avgpool: torch.nn.Module,
        classifier: Iterable[torch.nn.Module],
    ) -> None:
        super().__init__()
        self.features = nn.Sequential(*features)
        self.avgpool = avgpool
        self.classifier = nn.Sequential(*classifier)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, classes] of images [N, C, H, W]."""
        y: Tensor = self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))
        return y


def conv_relu(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    *,
    stride: int = 1,
    padding: int = 0,
    groups: int = 1,
) -> list[torch.nn.Module]:
    """A convolution and its ReLU."""
    conv = nn.Conv2d(
        in_channels, out_channels, kernel_size, stride=stride, padding=padding, groups=groups
    )
    return [conv, nn.ReLU(inplace=True)]


def scaled(channels: float, width: float, *, multiple: int = 1) -> int:
    """`channels` times `width`, rounded to a positive multiple of `multiple`."""
    return max(1, round(channels * width / multiple)) * multiple

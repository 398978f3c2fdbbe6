"""U-Net (Ronneberger et al., 2015), padded and with batch normalization, as it is trained today."""

from itertools import pairwise

import torch
from torch import Tensor

from .. import nn
from .convnet import scaled

LEVELS = 5  # of resolution; sides of images are multiples of 2 ** (LEVELS - 1)


class UNet(torch.nn.Module):
    """Logits [N, classes, H, W] of images [N, C, H, W], from 64 channels up to 1024 and back.

    `width` scales all of them. Maps grow by transposed convolutions, or with `upsample` by bilinear
    interpolation behind a 1x1 convolution.
    """

    def __init__(
        self,
        num_classes: int = 2,
        *,
        in_channels: int = 3,
        width: float = 1.0,
        upsample: bool = False,
    ) -> None:
        super().__init__()
        channels = [scaled(64 * 2**level, width) for level in range(LEVELS)]
        rising = pairwise((in_channels, *channels))
        falling = list(pairwise(reversed(channels)))
        self.down = torch.nn.ModuleList(_convs(before, after) for before, after in rising)
        self.pool = nn.MaxPool2d(2)
        self.grow = torch.nn.ModuleList(_grow(*pair, upsample=upsample) for pair in falling)
        self.up = torch.nn.ModuleList(_convs(2 * after, after) for _, after in falling)
        self.classifier = nn.Conv2d(channels[0], num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        *before, bottom = self.down
        maps = []
        for convs in before:
            maps.append(convs(x))
            x = self.pool(maps[-1])
        x = bottom(x)
        for grow, convs in zip(self.grow, self.up, strict=True):
            x = convs(torch.cat([maps.pop(), grow(x)], 1))
        y: Tensor = self.classifier(x)
        return y


def _convs(in_channels: int, out_channels: int) -> torch.nn.Module:
    """Two 3x3 convolutions with normalization and ReLU."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
        nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


def _grow(in_channels: int, out_channels: int, *, upsample: bool) -> torch.nn.Module:
    """A map of `out_channels` and twice the sides."""
    if upsample:
        narrow = nn.Conv2d(in_channels, out_channels, 1)
        return nn.Sequential(narrow, nn.Upsample(scale_factor=2, mode="bilinear"))
    return nn.ConvTranspose2d(in_channels, out_channels, 2, stride=2)


unet = UNet

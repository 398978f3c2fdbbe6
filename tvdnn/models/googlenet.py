"""GoogLeNet (Szegedy et al., 2015) as torchvision lays it out, with batch normalization."""

from typing import Final

import torch
from torch import Tensor

from .. import nn
from .convnet import scaled
from .mixed import ConvNorm, Mixed, truncated_normal

# By block: the channels of its 1x1 path, of the two convolutions of its second and third, and of
# what follows the pooling.
BLOCKS: Final = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
HEADS: Final = {"4a": "aux1", "4d": "aux2"}  # by the block behind which each head stands
POOLS: Final = {"3b": ("maxpool3", 3), "4e": ("maxpool4", 2)}


class GoogLeNet(torch.nn.Module):
    """GoogLeNet for maps of 224 x 224; `width` scales every hidden layer.

    With `aux_logits` it returns logits, the second head's and the first's while it trains, as
    torchvision's does by default; without, it has no heads and returns logits.
    """

    def __init__(
        self,
        num_classes: int = 1000,
        *,
        in_channels: int = 3,
        aux_logits: bool = False,
        dropout: float = 0.2,
        dropout_aux: float = 0.7,
        width: float = 1.0,
    ) -> None:
        super().__init__()
        c1, c2 = scaled(64, width), scaled(192, width)
        self.conv1 = ConvNorm(in_channels, c1, 7, stride=2, padding=3)
        self.maxpool1 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.conv2 = ConvNorm(c1, c1, 1)
        self.conv3 = ConvNorm(c1, c2, 3, padding=1)
        self.maxpool2 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        channels, heads = c2, {}
        for name, widths in BLOCKS.items():
            sizes = [scaled(size, width) for size in widths]
            self.add_module(f"inception{name}", _inception(channels, *sizes))
            channels = sizes[0] + sizes[2] + sizes[4] + sizes[5]
            if name in POOLS:
                pool, kernel = POOLS[name]
                self.add_module(pool, nn.MaxPool2d(kernel, stride=2, ceil_mode=True))
            if name in HEADS and aux_logits:
                heads[HEADS[name]] = channels
        for name, inputs in heads.items():
            self.add_module(name, _Head(inputs, num_classes, dropout_aux, width))
        self.aux_logits = aux_logits
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(channels, num_classes)
        self.apply(lambda module: truncated_normal(module, 0.01))

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Logits [N, classes] of images [N, C, H, W], and those of the heads before them."""
        x = self.maxpool2(self.conv3(self.conv2(self.maxpool1(self.conv1(x)))))
        heads = []
        for name in BLOCKS:
            x = self.get_submodule(f"inception{name}")(x)
            if name in HEADS and self.aux_logits and self.training:
                heads.append(self.get_submodule(HEADS[name])(x))
            if name in POOLS:
                x = self.get_submodule(POOLS[name][0])(x)
        logits: Tensor = self.fc(self.dropout(torch.flatten(self.avgpool(x), 1)))
        return (logits, *reversed(heads)) if heads else logits


def _inception(
    in_channels: int, one: int, three_in: int, three: int, five_in: int, five: int, pooled: int
) -> Mixed:
    """Four paths; the third has a kernel of 3 in torchvision's networks, where the paper has 5."""
    return Mixed(
        {"branch1": ConvNorm(in_channels, one, 1)},
        {"branch2": _narrow_wide(in_channels, three_in, three)},
        {"branch3": _narrow_wide(in_channels, five_in, five)},
        {
            "branch4": nn.Sequential(
                nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True),
                ConvNorm(in_channels, pooled, 1),
            )
        },
    )


def _narrow_wide(in_channels: int, inner: int, out_channels: int) -> torch.nn.Module:
    first = ConvNorm(in_channels, inner, 1)
    return nn.Sequential(first, ConvNorm(inner, out_channels, 3, padding=1))


class _Head(torch.nn.Module):
    """A classifier of an inner map."""

    def __init__(self, in_channels: int, num_classes: int, dropout: float, width: float) -> None:
        super().__init__()
        channels, hidden = scaled(128, width), scaled(1024, width)
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.conv = ConvNorm(in_channels, channels, 1)
        self.fc1 = nn.Linear(channels * 4 * 4, hidden)
        self.fc2 = nn.Linear(hidden, num_classes)
        self.relu = nn.ReLU(inplace=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.flatten(self.conv(self.pool(x)), 1)
        y: Tensor = self.fc2(self.dropout(self.relu(self.fc1(x))))
        return y


googlenet = GoogLeNet

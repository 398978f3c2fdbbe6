"""GoogLeNet of the paper (Szegedy et al., 2015): local response norms, no batch normalization."""

import torch

from .. import nn
from .alexnet import response_norm
from .convnet import ConvNet, conv_relu, scaled
from .googlenet import BLOCKS, POOLS
from .mixed import Mixed


def googlenet_lrn(
    num_classes: int = 1000, *, in_channels: int = 3, dropout: float = 0.4, width: float = 1.0
) -> ConvNet:
    """The paper's GoogLeNet without its heads, for maps of 224 x 224.

    `width` scales every hidden layer.
    """
    c1, c2 = scaled(64, width), scaled(192, width)
    features = [
        *conv_relu(in_channels, c1, 7, stride=2, padding=3),
        _pool(),
        response_norm(bias=1.0),
        *conv_relu(c1, c1, 1),
        *conv_relu(c1, c2, 3, padding=1),
        response_norm(bias=1.0),
        _pool(),
    ]
    channels = c2
    for name, widths in BLOCKS.items():
        sizes = [scaled(size, width) for size in widths]
        features.append(_inception(channels, *sizes))
        channels = sizes[0] + sizes[2] + sizes[4] + sizes[5]
        if name in POOLS:
            features.append(_pool())
    classifier = [nn.Dropout(dropout), nn.Linear(channels, num_classes)]
    return ConvNet(features, nn.AdaptiveAvgPool2d(1), classifier)


def _pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)


def _inception(
    in_channels: int, one: int, three_in: int, three: int, five_in: int, five: int, pooled: int
) -> Mixed:
    wide = [*conv_relu(in_channels, three_in, 1), *conv_relu(three_in, three, 3, padding=1)]
    wider = [*conv_relu(in_channels, five_in, 1), *conv_relu(five_in, five, 5, padding=2)]
    last = [nn.MaxPool2d(3, stride=1, padding=1), *conv_relu(in_channels, pooled, 1)]
    return Mixed(
        {"branch1": torch.nn.Sequential(*conv_relu(in_channels, one, 1))},
        {"branch2": torch.nn.Sequential(*wide)},
        {"branch3": torch.nn.Sequential(*wider)},
        {"branch4": torch.nn.Sequential(*last)},
    )

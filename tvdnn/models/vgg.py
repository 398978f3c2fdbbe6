"""VGG (Simonyan and Zisserman, 2015) as torchvision lays it out, and vDNN's very deep ones (2016).

vDNN's VGG-116 to VGG-416 are VGG-16 with 20 to 80 convolutions more in each of the five groups.
"""

from functools import partial
from typing import Final

import torch

from .. import nn
from .convnet import ConvNet, conv_relu, scaled

CHANNELS: Final = (64, 128, 256, 512, 512)
CONVS: Final = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
    116: (22, 22, 23, 23, 23),
    216: (42, 42, 43, 43, 43),
    316: (62, 62, 63, 63, 63),
    416: (82, 82, 83, 83, 83),
}


def vgg(
    depth: int,
    num_classes: int = 1000,
    *,
    in_channels: int = 3,
    dropout: float = 0.5,
    width: float = 1.0,
    batch_norm: bool = False,
) -> ConvNet:
    """VGG with `depth` weight layers, for maps of 224 x 224; `width` scales every hidden layer.

    With `batch_norm` every convolution is normalized.
    """
    features: list[torch.nn.Module] = []
    channels = in_channels
    for count, out_channels in zip(CONVS[depth], CHANNELS, strict=True):
        for _ in range(count):
            conv, relu = conv_relu(channels, scaled(out_channels, width), 3, padding=1)
            channels = scaled(out_channels, width)
            features += [conv, nn.BatchNorm2d(channels), relu] if batch_norm else [conv, relu]
        features.append(nn.MaxPool2d(2, stride=2))
    hidden = scaled(4096, width)
    classifier = [
        nn.Linear(channels * 7 * 7, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(hidden, num_classes),
    ]
    net = ConvNet(features, nn.AdaptiveAvgPool2d((7, 7)), classifier)
    net.apply(_initialize)
    return net


def _initialize(module: torch.nn.Module) -> None:
    """torchvision's initial weights, which keep the size of gradients through any depth."""
    if isinstance(module, torch.nn.Conv2d):
        torch.nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, torch.nn.Linear):
        torch.nn.init.normal_(module.weight, 0, 0.01)
    else:
        return
    if module.bias is not None:
        torch.nn.init.zeros_(module.bias)


vgg11 = partial(vgg, 11)
vgg13 = partial(vgg, 13)
vgg16 = partial(vgg, 16)
vgg19 = partial(vgg, 19)
vgg116 = partial(vgg, 116)
vgg216 = partial(vgg, 216)
vgg316 = partial(vgg, 316)
vgg416 = partial(vgg, 416)
vgg11_bn = partial(vgg, 11, batch_norm=True)
vgg13_bn = partial(vgg, 13, batch_norm=True)
vgg16_bn = partial(vgg, 16, batch_norm=True)
vgg19_bn = partial(vgg, 19, batch_norm=True)

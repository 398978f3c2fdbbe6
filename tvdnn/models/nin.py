"""Network in Network (Lin, Chen and Yan, 2014) in the form that its authors trained on ImageNet."""

from .. import nn
from .convnet import ConvNet, conv_relu, scaled


def nin(
    num_classes: int = 1000, *, in_channels: int = 3, dropout: float = 0.5, width: float = 1.0
) -> ConvNet:
    """NiN for maps of 224 x 224: four convolutions, each with two of 1x1 behind it.

    The last makes a map a class, whose averages are the logits; `width` scales all others.
    """
    c1, c2, c3, c4 = (scaled(channels, width) for channels in (96, 256, 384, 1024))
    features = [
        *conv_relu(in_channels, c1, 11, stride=4),
        *conv_relu(c1, c1, 1),
        *conv_relu(c1, c1, 1),
        nn.MaxPool2d(3, stride=2),
        *conv_relu(c1, c2, 5, padding=2),
        *conv_relu(c2, c2, 1),
        *conv_relu(c2, c2, 1),
        nn.MaxPool2d(3, stride=2),
        *conv_relu(c2, c3, 3, padding=1),
        *conv_relu(c3, c3, 1),
        *conv_relu(c3, c3, 1),
        nn.MaxPool2d(3, stride=2),
        nn.Dropout(dropout),
        *conv_relu(c3, c4, 3, padding=1),
        *conv_relu(c4, c4, 1),
        *conv_relu(c4, num_classes, 1),
    ]
    return ConvNet(features, nn.AdaptiveAvgPool2d(1), ())

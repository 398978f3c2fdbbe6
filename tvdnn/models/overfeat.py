"""OverFeat (Sermanet et al., 2014), the fast model."""

from .. import nn
from .convnet import ConvNet, conv_relu, scaled


def overfeat(
    num_classes: int = 1000, *, in_channels: int = 3, dropout: float = 0.5, width: float = 1.0
) -> ConvNet:
    """OverFeat's fast model, for maps of 231 x 231; `width` scales every hidden layer."""
    c1, c2, c3, c4 = (scaled(channels, width) for channels in (96, 256, 512, 1024))
    first, second = scaled(3072, width), scaled(4096, width)
    features = [
        *conv_relu(in_channels, c1, 11, stride=4),
        nn.MaxPool2d(2),
        *conv_relu(c1, c2, 5),
        nn.MaxPool2d(2),
        *conv_relu(c2, c3, 3, padding=1),
        *conv_relu(c3, c4, 3, padding=1),
        *conv_relu(c4, c4, 3, padding=1),
        nn.MaxPool2d(2),
    ]
    classifier = [
        nn.Linear(c4 * 6 * 6, first),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(first, second),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(second, num_classes),
    ]
    return ConvNet(features, nn.Identity(), classifier)

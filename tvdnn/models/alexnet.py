"""AlexNet (Krizhevsky et al.): torchvision's one-tower form of 2014, and the original of 2012."""

from .. import nn
from .convnet import ConvNet, conv_relu, scaled


def alexnet(
    num_classes: int = 1000, *, in_channels: int = 3, dropout: float = 0.5, width: float = 1.0
) -> ConvNet:
    """torchvision's AlexNet, for maps of 224 x 224; `width` scales every hidden layer."""
    c1, c2, c3, c4 = (scaled(channels, width) for channels in (64, 192, 384, 256))
    hidden = scaled(4096, width)
    features = [
        *conv_relu(in_channels, c1, 11, stride=4, padding=2),
        nn.MaxPool2d(3, stride=2),
        *conv_relu(c1, c2, 5, padding=2),
        nn.MaxPool2d(3, stride=2),
        *conv_relu(c2, c3, 3, padding=1),
        *conv_relu(c3, c4, 3, padding=1),
        *conv_relu(c4, c4, 3, padding=1),
        nn.MaxPool2d(3, stride=2),
    ]
    classifier = [
        nn.Dropout(dropout),
        nn.Linear(c4 * 6 * 6, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, num_classes),
    ]
    return ConvNet(features, nn.AdaptiveAvgPool2d((6, 6)), classifier)


def alexnet_lrn(
    num_classes: int = 1000, *, in_channels: int = 3, dropout: float = 0.5, width: float = 1.0
) -> ConvNet:
    """The AlexNet of the paper, local response normalisation and two groups, for 227 x 227."""
    c1, c2, c3 = (scaled(channels, width, multiple=2) for channels in (96, 256, 384))
    hidden = scaled(4096, width)
    features = [
        *conv_relu(in_channels, c1, 11, stride=4),
        response_norm(),
        nn.MaxPool2d(3, stride=2),
        *conv_relu(c1, c2, 5, padding=2, groups=2),
        response_norm(),
        nn.MaxPool2d(3, stride=2),
        *conv_relu(c2, c3, 3, padding=1),
        *conv_relu(c3, c3, 3, padding=1, groups=2),
        *conv_relu(c3, c2, 3, padding=1, groups=2),
        nn.MaxPool2d(3, stride=2),
    ]
    classifier = [
        nn.Linear(c2 * 6 * 6, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(hidden, num_classes),
    ]
    return ConvNet(features, nn.Identity(), classifier)


def response_norm(bias: float = 2.0) -> nn.LocalResponseNorm:
    """The paper's constants; its alpha of 1e-4 scales a sum of 5 channels, torch's their mean."""
    return nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=bias)

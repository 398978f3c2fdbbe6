"""LeNet-5 (LeCun et al., 1998), with ReLU and max pooling as it is trained today."""

import torch

from .. import nn
from .convnet import scaled


def lenet5(
    num_classes: int = 10, *, in_channels: int = 1, width: float = 1.0
) -> torch.nn.Sequential:
    """LeNet-5 for maps of 32 x 32; `width` scales every hidden layer."""
    first, second = scaled(6, width), scaled(16, width)
    third, fourth = scaled(120, width), scaled(84, width)
    return nn.Sequential(
        nn.Conv2d(in_channels, first, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * 5 * 5, third),
        nn.ReLU(),
        nn.Linear(third, fourth),
        nn.ReLU(),
        nn.Linear(fourth, num_classes),
    )

"""Layers: torch.nn.Module subclasses under torch's names, with its constructors and state_dicts.

Alone they run with autograd, by Triton kernels on a GPU and their references elsewhere.
"""

from torch.nn import (
    CircularPad2d,
    ConstantPad2d,
    Flatten,
    Identity,
    PixelShuffle,
    PixelUnshuffle,
    ReflectionPad2d,
    ReplicationPad2d,
    Sequential,
    Unflatten,
    ZeroPad2d,
)

from .activation import (
    ELU,
    GELU,
    Hardsigmoid,
    Hardswish,
    LeakyReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Tanh,
)
from .batch_norm import BatchNorm1d, BatchNorm2d
from .channel_shuffle import ChannelShuffle
from .conv import Conv2d, LazyConv2d
from .conv_transpose import ConvTranspose2d
from .dropout import Dropout, Dropout2d, StochasticDepth
from .group_norm import GroupNorm, InstanceNorm1d, InstanceNorm2d
from .layer_norm import LayerNorm
from .linear import LazyLinear, Linear
from .local_response_norm import LocalResponseNorm
from .loss import BCEWithLogitsLoss, CrossEntropyLoss, MSELoss
from .pool import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from .prelu import PReLU
from .softmax import LogSoftmax, Softmax
from .unary import CELU, GLU, SELU, Hardtanh, LogSigmoid, Mish, Softplus, Softsign, Threshold
from .upsample import Upsample

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "SELU",
    "AdaptiveAvgPool2d",
    "AvgPool2d",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "ChannelShuffle",
    "CircularPad2d",
    "ConstantPad2d",
    "Conv2d",
    "ConvTranspose2d",
    "CrossEntropyLoss",
    "Dropout",
    "Dropout2d",
    "Flatten",
    "GroupNorm",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "Identity",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "LayerNorm",
    "LazyConv2d",
    "LazyLinear",
    "LeakyReLU",
    "Linear",
    "LocalResponseNorm",
    "LogSigmoid",
    "LogSoftmax",
    "MSELoss",
    "MaxPool2d",
    "Mish",
    "PReLU",
    "PixelShuffle",
    "PixelUnshuffle",
    "ReLU",
    "ReLU6",
    "ReflectionPad2d",
    "ReplicationPad2d",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Softsign",
    "StochasticDepth",
    "Tanh",
    "Threshold",
    "Unflatten",
    "Upsample",
    "ZeroPad2d",
]

"""The networks that the four systems were measured on and others, built from tvdnn's layers."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import torch

from ..errors import InputError
from .alexnet import alexnet, alexnet_lrn
from .densenet import densenet121, densenet161, densenet169, densenet201
from .googlenet import googlenet
from .googlenet_lrn import googlenet_lrn
from .inception_v3 import inception_v3
from .inception_v4 import inception_v4
from .lenet import lenet5
from .nin import nin
from .overfeat import overfeat
from .resnet import (
    SHALLOWEST,
    deep_resnet,
    resnet18,
    resnet34,
    resnet50,
    resnet101,
    resnet152,
    resnet1920,
    resnet2500,
    resnet3840,
    resnext50_32x4d,
    resnext101_32x8d,
    wide_resnet50_2,
    wide_resnet101_2,
)
from .unet import unet
from .vgg import (
    vgg11,
    vgg11_bn,
    vgg13,
    vgg13_bn,
    vgg16,
    vgg16_bn,
    vgg19,
    vgg19_bn,
    vgg116,
    vgg216,
    vgg316,
    vgg416,
)

__all__ = [
    "alexnet",
    "alexnet_lrn",
    "by_name",
    "deep_resnet",
    "densenet121",
    "densenet161",
    "densenet169",
    "densenet201",
    "googlenet",
    "googlenet_lrn",
    "image_shape",
    "image_size",
    "inception_v3",
    "inception_v4",
    "lenet5",
    "names",
    "nin",
    "overfeat",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnet1920",
    "resnet2500",
    "resnet3840",
    "resnext50_32x4d",
    "resnext101_32x8d",
    "unet",
    "vgg11",
    "vgg11_bn",
    "vgg13",
    "vgg13_bn",
    "vgg16",
    "vgg16_bn",
    "vgg19",
    "vgg19_bn",
    "vgg116",
    "vgg216",
    "vgg316",
    "vgg416",
    "wide_resnet50_2",
    "wide_resnet101_2",
]

_Model: TypeAlias = tuple[Callable[..., torch.nn.Module], int, int]

# The constructor of each network, and the channels and side of the images that it is made for.
_MODELS: Final[Mapping[str, _Model]] = MappingProxyType(
    {
        "lenet5": (lenet5, 1, 32),
        "alexnet": (alexnet, 3, 224),
        "alexnet_lrn": (alexnet_lrn, 3, 227),
        "overfeat": (overfeat, 3, 231),
        "nin": (nin, 3, 224),
        "vgg11": (vgg11, 3, 224),
        "vgg13": (vgg13, 3, 224),
        "vgg16": (vgg16, 3, 224),
        "vgg19": (vgg19, 3, 224),
        "vgg11_bn": (vgg11_bn, 3, 224),
        "vgg13_bn": (vgg13_bn, 3, 224),
        "vgg16_bn": (vgg16_bn, 3, 224),
        "vgg19_bn": (vgg19_bn, 3, 224),
        "vgg116": (vgg116, 3, 224),
        "vgg216": (vgg216, 3, 224),
        "vgg316": (vgg316, 3, 224),
        "vgg416": (vgg416, 3, 224),
        "googlenet": (googlenet, 3, 224),
        "googlenet_lrn": (googlenet_lrn, 3, 224),
        "inception_v3": (inception_v3, 3, 299),
        "inception_v4": (inception_v4, 3, 299),
        "resnet18": (resnet18, 3, 224),
        "resnet34": (resnet34, 3, 224),
        "resnet50": (resnet50, 3, 224),
        "resnet101": (resnet101, 3, 224),
        "resnet152": (resnet152, 3, 224),
        "resnet1920": (resnet1920, 3, 224),
        "resnet2500": (resnet2500, 3, 224),
        "resnet3840": (resnet3840, 3, 224),
        "resnext50_32x4d": (resnext50_32x4d, 3, 224),
        "resnext101_32x8d": (resnext101_32x8d, 3, 224),
        "wide_resnet50_2": (wide_resnet50_2, 3, 224),
        "wide_resnet101_2": (wide_resnet101_2, 3, 224),
        "densenet121": (densenet121, 3, 224),
        "densenet161": (densenet161, 3, 224),
        "densenet169": (densenet169, 3, 224),
        "densenet201": (densenet201, 3, 224),
        "unet": (unet, 3, 512),
    }
)


def names() -> tuple[str, ...]:
    """The names that `by_name` knows, beside resnetN for any depth from 137 on."""
    return tuple(_MODELS)


def by_name(name: str, **options: Any) -> torch.nn.Module:
    """The network of this name, in any case and with or without dashes; `options` as its own.

    `resnetN` is SuperNeurons' of at least N layers (`deep_resnet`), unless `names` has it.
    """
    return _model(name)[0](**options)


def image_size(name: str) -> int:
    """The side of the images that the network is made for."""
    return _model(name)[2]


def image_shape(name: str) -> tuple[int, int, int]:
    """The shape [C, H, W] of the images that the network is made for."""
    _, channels, side = _model(name)
    return channels, side, side


def _model(name: str) -> _Model:
    plain = {known.replace("_", ""): known for known in _MODELS}
    wanted = name.lower().replace("-", "").replace("_", "")
    deep = re.fullmatch(r"resnet(\d+)", wanted)
    if wanted in plain:
        return _MODELS[plain[wanted]]
    if deep is None or int(deep[1]) < SHALLOWEST:
        known = ", ".join(_MODELS)
        raise InputError(
            f"there is no network named {name!r}; there are {known}, and resnetN for any N of "
            f"{SHALLOWEST} and more"
        )
    return partial(deep_resnet, int(deep[1])), 3, 224

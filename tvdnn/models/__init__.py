"""The networks that the four systems were measured on, and LeNet-5, built from tvdnn's layers."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch

from ..errors import InputError
from .alexnet import alexnet, alexnet_lrn
from .lenet import lenet5
from .overfeat import overfeat
from .vgg import vgg11, vgg13, vgg16, vgg19, vgg116, vgg216, vgg316, vgg416

__all__ = [
    "alexnet",
    "alexnet_lrn",
    "by_name",
    "image_shape",
    "image_size",
    "lenet5",
    "names",
    "overfeat",
    "vgg11",
    "vgg13",
    "vgg16",
    "vgg19",
    "vgg116",
    "vgg216",
    "vgg316",
    "vgg416",
]

# The constructor of each network, and the channels and side of the images that it is made for.
_MODELS: Final[Mapping[str, tuple[Callable[..., torch.nn.Module], int, int]]] = MappingProxyType(
    {
        "lenet5": (lenet5, 1, 32),
        "alexnet": (alexnet, 3, 224),
        "alexnet_lrn": (alexnet_lrn, 3, 227),
        "overfeat": (overfeat, 3, 231),
        "vgg11": (vgg11, 3, 224),
        "vgg13": (vgg13, 3, 224),
        "vgg16": (vgg16, 3, 224),
        "vgg19": (vgg19, 3, 224),
        "vgg116": (vgg116, 3, 224),
        "vgg216": (vgg216, 3, 224),
        "vgg316": (vgg316, 3, 224),
        "vgg416": (vgg416, 3, 224),
    }
)


def names() -> tuple[str, ...]:
    """The names that `by_name` knows."""
    return tuple(_MODELS)


def by_name(name: str, **options: Any) -> torch.nn.Module:
    """The network of this name, in any case and with or without dashes; `options` as its own."""
    return _model(name)[0](**options)


def image_size(name: str) -> int:
    """The side of the images that the network is made for."""
    return _model(name)[2]


def image_shape(name: str) -> tuple[int, int, int]:
    """The shape [C, H, W] of the images that the network is made for."""
    _, channels, side = _model(name)
    return channels, side, side


def _model(name: str) -> tuple[Callable[..., torch.nn.Module], int, int]:
    plain = {known.replace("_", ""): known for known in _MODELS}
    key = plain.get(name.lower().replace("-", "").replace("_", ""))
    if key is None:
        raise InputError(f"there is no network named {name!r}; there are {', '.join(_MODELS)}")
    return _MODELS[key]

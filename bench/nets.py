"""The networks that whole steps are measured on: torchvision's, unchanged, or ours by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torchvision import models

import tvdnn
from bench.cross_entropies import cross_entropies


@dataclass(frozen=True, slots=True)
class Net:
    """A network's title, input and outputs."""

    title: str
    side: int = 224  # rows and columns of its images
    classes: int = 1000
    weights: tuple[float, ...] = (1.0,)  # of the losses of its outputs, which are added
    per_pixel: bool = False  # targets are classes of pixels, not of images
    settings: Mapping[str, Any] = field(default_factory=dict)


QUICK: Final = {"init_weights": False}  # truncated normal values take torchvision a minute
NETS: Final[Mapping[str, Net]] = {
    "alexnet": Net("AlexNet"),
    "vgg16": Net("VGG-16"),
    "vgg16_bn": Net("VGG-16-BN"),
    "vgg416": Net("VGG-416"),
    "resnet50": Net("ResNet-50"),
    "resnet101": Net("ResNet-101"),
    "resnet152": Net("ResNet-152"),
    "resnet1920": Net("ResNet-1920"),
    "resnet2500": Net("ResNet-2500"),
    "resnet3840": Net("ResNet-3840"),
    "densenet121": Net("DenseNet-121"),
    "googlenet": Net("GoogLeNet", weights=(1.0, 0.3, 0.3), settings=QUICK),
    "googlenet_lrn": Net("GoogLeNet, LRN"),
    "nin": Net("NiN"),
    "overfeat": Net("OverFeat", side=231),
    "inception_v3": Net("Inception-v3", side=299, weights=(1.0, 0.4), settings=QUICK),
    "inception_v4": Net("Inception-v4", side=299),
    "convnext_tiny": Net("ConvNeXt-T"),
    "efficientnet_b0": Net("EfficientNet-B0"),
    "fcn_resnet50": Net(
        "FCN-ResNet-50", classes=21, per_pixel=True, settings={"weights_backbone": None}
    ),
    "unet": Net("U-Net", side=1024, classes=2, per_pixel=True),
}


def net_of(name: str) -> Net:
    """A network of NETS, by default one that classifies images of 224 x 224."""
    return NETS.get(name, Net(name))


def network(name: str) -> nn.Module:
    """Torchvision's network of this name, unchanged; ours where it has none."""
    makers = (getattr(package, name, None) for package in (models, models.segmentation))
    make = next(filter(None, makers), None)
    return make(**net_of(name).settings) if make else tvdnn.models.by_name(name)


def batch(name: str, size: int, side: int | None = None, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random images on the GPU and their targets."""
    net = net_of(name)
    side = side or net.side
    generator = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(size, 3, side, side, device="cuda", generator=generator)
    shape = (size, side, side) if net.per_pixel else (size,)
    return x, torch.randint(0, net.classes, shape, device="cuda", generator=generator)


def loss_of(name: str, outputs: Any, y: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The cross-entropies of a network's outputs, of this type if one is given; weighted, added."""
    return cross_entropies(outputs, y, net_of(name).weights, dtype)

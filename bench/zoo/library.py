"""Networks of torchvision and timm by name, unchanged."""

from typing import Any, Final

import timm
from torch import nn
from torchvision import models

from bench.zoo.networks import ZooNetwork

QUICK: Final = ("googlenet", "inception_v3")  # their own initial values take a minute to draw


def make(network: ZooNetwork) -> nn.Module:
    """The library's network with random weights, for training."""
    if network.library == "timm":
        made: nn.Module = timm.create_model(network.net)
        return made.train()
    options: dict[str, Any] = {"weights": None}
    if network.per_pixel:
        options["weights_backbone"] = None
    if network.net in QUICK:
        options["init_weights"] = False
    return models.get_model(network.net, **options).train()

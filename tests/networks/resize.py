"""Networks that resize maps, beside their skips."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.networks.case import EXACT, TENSOR, NetworkCase

CLASSES = 3


class Decoder(nn.Module):
    """A small U-Net (Ronneberger et al. 2015) that resizes in every way."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 4, 3, padding=1)
        self.inner = nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.joined, self.head = nn.Conv2d(8, 4, 3, padding=1), nn.Conv2d(8, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = torch.relu(self.down(x))
        inner = torch.relu(self.inner(functional.max_pool2d(skip, 2)))
        inner = functional.interpolate(inner, size=(3, 5), mode="bilinear")
        inner = functional.interpolate(inner, scale_factor=(1.4, 0.9))
        y = self.joined(torch.cat([skip, self.up(inner)], 1))
        y = torch.cat([y, functional.interpolate(inner, (8, 8))], 1)
        return self.head(y)


NETWORKS = {
    "decoder": NetworkCase(
        Decoder,
        (3, 8, 8),
        batch=4,
        classes=CLASSES,
        chunk_size=1000,
        runs=(EXACT, TENSOR),
        pixels=True,
    ),
}

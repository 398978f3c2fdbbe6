"""Networks of layer, group and instance normalization, and of permuted maps."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.networks.case import EXACT, HALF, NetworkCase, Run

CLASSES = 4


class LayerNorm2d(nn.LayerNorm):
    """Layer normalization over the channels of [N, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        x = functional.layer_norm(
            x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps
        )
        return x.permute(0, 3, 1, 2)


class Block(nn.Module):
    """A ConvNeXt block: products over the channels of permuted maps, and a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.wide = nn.Linear(channels, 4 * channels)
        self.narrow = nn.Linear(4 * channels, channels, bias=False)
        self.scale = nn.Parameter(torch.full((channels, 1, 1), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.narrow(functional.gelu(self.wide(y)))
        return x + self.scale * y.permute(0, 3, 1, 2)


def normalized() -> nn.Sequential:
    net = nn.Sequential(
        *(nn.Conv2d(3, 8, 2, stride=2), LayerNorm2d(8), Block(8)),
        *(nn.GroupNorm(4, 8), nn.Conv2d(8, 8, 1, bias=False)),
        *(nn.InstanceNorm2d(8, affine=True), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), LayerNorm2d(8), nn.Flatten(), nn.Linear(8, 12)),
        *(nn.LayerNorm(12, bias=False), nn.Linear(12, CLASSES)),
    )
    norms = (nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm2d)
    for norm in (module for module in net.modules() if isinstance(module, norms)):
        for param in norm.parameters():
            nn.init.normal_(param, 1.0, 0.3)
    return net


NETWORKS = {
    "normalized": NetworkCase(
        normalized,
        (3, 6, 6),
        batch=19,  # more than a group of samples whose sums add up
        chunk_size=1200,
        runs=(EXACT, HALF, Run("tf32", "triton", samples=2, steps=1)),
    ),
}

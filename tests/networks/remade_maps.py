"""Networks of pointwise convolutions that alone read what a normalization or a gate made."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from tests.networks.case import HALF, LEAST, MOVED, NetworkCase, Run

CLASSES = 4


class Gate(nn.Module):
    """Squeeze and excitation: a gate of each channel by the means of all."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gate = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.gate(x.mean((2, 3))))[:, :, None, None]


def inverted(channels: int, inner: int, outer: int, *between: nn.Module) -> list[nn.Module]:
    """A block that widens its map, filters each channel, and narrows it again."""
    return [
        nn.Conv2d(channels, inner, 1, bias=False),
        nn.BatchNorm2d(inner),
        between[0],
        nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=False),
        nn.BatchNorm2d(inner),
        *between,
        nn.Conv2d(inner, outer, 1, bias=False),
        nn.BatchNorm2d(outer),
    ]


class Inverted(nn.Sequential):
    """Three blocks behind a stem. Between them a map is normalized and nothing else."""

    def __init__(self) -> None:
        stem = [nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32, affine=False), nn.ReLU()]
        blocks = [
            *inverted(32, 32, 32, nn.ReLU6()),
            *inverted(32, 96, 32, nn.SiLU(), Gate(96)),
            *inverted(32, 20, 32, nn.Hardswish(), Gate(20)),
        ]
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES)]
        super().__init__(*stem, *blocks, *head)


class Dense(nn.Module):
    """Layers that normalize all maps before them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(32 + 16 * i) for i in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(32 + 16 * i, 16, 1) for i in range(3))
        self.head = nn.Linear(80, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, conv(norm(x).relu())], 1)
        return self.head(x.mean((2, 3)))


class Narrow(nn.Sequential):
    """Maps that fill no whole 16 bytes, which lie in padded ones."""

    def __init__(self) -> None:
        sizes, layers = (36, 44, 100, 36), [nn.Conv2d(3, 36, 3, padding=1)]
        for inner, outer in pairwise(sizes):
            layers += [nn.BatchNorm2d(inner), nn.SiLU(), nn.Conv2d(inner, outer, 1)]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(36, CLASSES))


KERNELS = Run("bf16", kernels="triton", samples=3, steps=2)
IN_TF32 = Run("tf32", kernels="triton", samples=3, steps=2)
AUTO = {"policy": "auto"}
NETWORKS = {
    "inverted": NetworkCase(
        Inverted,
        (3, 12, 12),
        chunk_size=4096,
        runs=(HALF, KERNELS, IN_TF32),
        policies=(AUTO, LEAST, MOVED),
        atol=3e-5,
    ),
    "narrow": NetworkCase(
        Narrow,
        (3, 6, 6),
        chunk_size=4096,
        runs=(HALF, KERNELS, IN_TF32),
        policies=(AUTO, LEAST),
        atol=3e-5,
    ),
    "dense": NetworkCase(
        Dense,
        (3, 8, 8),
        chunk_size=4096,
        runs=(HALF, KERNELS, IN_TF32),
        policies=(AUTO, LEAST),
        atol=3e-5,
    ),
}

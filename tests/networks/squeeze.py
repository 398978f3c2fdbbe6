"""Networks with squeeze and excitation behind a normalization, as the families have it."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.networks.case import EXACT, HALF, LEAST, MOVED, STORED, TENSOR, NetworkCase, Run

CLASSES = 4
SIGMOIDS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "hardsigmoid": functional.hardsigmoid,
}


class Squeeze(nn.Module):
    """Gates of a map's channels by two convolutions of its means."""

    def __init__(self, channels: int, gate: str = "sigmoid") -> None:
        super().__init__()
        self.gate, inner = SIGMOIDS[gate], channels // 4
        self.first, self.second = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        means = functional.adaptive_avg_pool2d(x, 1)
        return x * self.gate(self.second(self.first(means).relu()))


class Residual(nn.Module):
    """A block of SE-ResNet: the gated map is added to the block's input and rectified."""

    def __init__(self, channels: int, inner: int, *, relu: bool = True) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, inner, 3, padding=1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, channels, 1, bias=False), nn.BatchNorm2d(channels), Squeeze(channels),
        )  # fmt: skip
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        y = self.branch(x) + x
        return y.relu() if self.relu else y


class Inverted(nn.Module):
    """A block of EfficientNet or MobileNet-v3: a pointwise convolution reads the gated map."""

    def __init__(
        self, channels: int, inner: int, outer: int, function: str, gate: str = "sigmoid"
    ) -> None:
        super().__init__()
        self.function: Callable[[Tensor], Tensor] = getattr(functional, function)
        self.filter = nn.Conv2d(channels, inner, 3, padding=1, bias=False)
        self.norm, self.squeeze = nn.BatchNorm2d(inner), Squeeze(inner, gate)
        self.last, self.last_norm = nn.Conv2d(inner, outer, 1, bias=False), nn.BatchNorm2d(outer)

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze(self.function(self.norm(self.filter(x))))
        return self.last_norm(self.last(x))


class Preactivated(nn.Module):
    """What a map is normalized of is also the residual, with its gradient or without."""

    def __init__(self, channels: int, *, relu: bool = True, detached: bool = False) -> None:
        super().__init__()
        self.norm, self.squeeze = nn.BatchNorm2d(channels), Squeeze(channels)
        self.relu, self.detached = relu, detached

    def forward(self, x: Tensor) -> Tensor:
        y = self.squeeze(self.norm(x)) + (x.detach() if self.detached else x)
        return y.relu() if self.relu else y


class Branches(nn.Module):
    """Gated maps that are added to what no pass need keep, to each other, and to no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8, 16, 1) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(3))
        self.squeezes = nn.ModuleList(Squeeze(16) for _ in range(3))
        self.stem = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        parts = [norm(conv(x)) for conv, norm in zip(self.convs[:3], self.norms, strict=True)]
        first, second, third = (s(p) for s, p in zip(self.squeezes, parts, strict=True))
        y = (first + second).relu() + (third + self.convs[3](x)).relu()
        return y + (y * 2).detach()


def chain(*blocks: nn.Module, channels: int) -> nn.Sequential:
    """Blocks between a stem of 32 channels and a head."""
    stem = [nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)]
    return nn.Sequential(*stem, *blocks, *head)


def residual() -> nn.Sequential:
    """As SE-ResNet. Behind the last block but one no ReLU follows the sum."""
    blocks = [Residual(32, 16), Residual(32, 16, relu=False), Residual(32, 16)]
    return chain(*blocks, channels=32)


def preactivated() -> nn.Sequential:
    convs = (nn.Conv2d(32, 32, 1) for _ in range(3))
    blocks = Preactivated(32), Preactivated(32, relu=False), Preactivated(32, detached=True)
    return chain(*(each for pair in zip(convs, blocks, strict=True) for each in pair), channels=32)


def inverted(function: str, gate: str = "sigmoid") -> nn.Sequential:
    """One convolution makes the gated map, one has too few channels, and one no whole words."""
    blocks = [
        Inverted(32, 96, 32, function, gate),
        Inverted(32, 32, 16, function, gate),
        Inverted(16, 100, 24, function, gate),
    ]
    return chain(*blocks, channels=24)


def branches() -> nn.Sequential:
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES)]
    return nn.Sequential(Branches(), *head)


TRITON = Run("tf32", kernels="triton", samples=3, steps=2)
KERNELS = Run("bf16", kernels="triton", samples=3, steps=2)
AUTO = {"policy": "auto"}


def _case(make: Callable[[], nn.Module], *runs: Run) -> NetworkCase:
    return NetworkCase(
        make, (3, 8, 8), chunk_size=4096, runs=(HALF, *runs), policies=(AUTO, LEAST, MOVED),
        atol=3e-5,
    )  # fmt: skip


NETWORKS = {
    "residual": _case(residual, KERNELS),
    "branches": _case(branches, KERNELS),
    "preactivated": _case(preactivated),
    "apart": NetworkCase(
        residual,
        (3, 8, 8),
        chunk_size=4096,
        runs=(EXACT, TENSOR, TRITON),
        policies=(MOVED, STORED),
        atol=3e-5,
        gradients=False,
    ),
    "silu": _case(partial(inverted, "silu")),
    "relu": _case(partial(inverted, "relu")),
    "hardswish": _case(partial(inverted, "hardswish", "hardsigmoid"), KERNELS),
}

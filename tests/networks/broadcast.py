"""Networks whose operands broadcast together."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.networks.case import EXACT, HALF, TENSOR, NetworkCase

SHAPE, CLASSES = (3, 4, 6), 4
RUNS = (EXACT, HALF, TENSOR)


SHAPES: list[tuple[int, ...]] = [
    *((), (1,), (1, 1, 1, 1), (6,), (4, 1), (4, 6), (3, 1, 1), (1, 3, 1, 1), (1, 1, 4, 1)),
    *((3, 4, 6), (1, 3, 4, 6), (3, 1, 6), (1, 3, 4, 1)),
]


class Parameters(nn.Module):
    """A map with a parameter of each shape, in every operation and order."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 3, 1), nn.Linear(72, CLASSES)
        self.params = nn.ParameterList(torch.rand(shape) + 0.5 for _ in range(6))
        self.register_buffer("mean", torch.rand(shape))

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d, e, f = self.params
        x = (self.conv(x - self.mean) * a + b) / c
        x = d / (1 + x * x) - e
        x = torch.add(f - x, self.mean, alpha=2)
        return self.head((torch.maximum(x, a) * self.mean).flatten(1))


class Maps(nn.Module):
    """Maps with maps of fewer pixels, channels or both, and quotients of maps of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 1)
        self.spatial, self.one = nn.Conv2d(6, 1, 1), nn.Conv2d(1, 1, 1)
        self.head, self.tail = nn.Linear(6 * 24, CLASSES), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        gates = torch.sigmoid(self.spatial(x))  # [N, 1, H, W]
        pooled = x.mean((2, 3), keepdim=True)  # [N, C, 1, 1]
        scalar = self.one(functional.adaptive_avg_pool2d(gates, 1))  # [N, 1, 1, 1]
        y = self.second(x) * gates / (1 + gates * pooled * pooled)
        y = y - pooled + gates - scalar * y
        y = torch.max(torch.maximum(y, x), other=pooled) + pooled.min(y) + x / (y * y + 1)
        y = torch.sub(y, gates, alpha=0.5)
        features = y.mean((2, 3))
        weights = torch.sigmoid(self.tail(features))  # [N, 1] beside [N, F]
        return self.head(y.flatten(1)) * weights / (1 + weights)


class Splits(nn.Module):
    """Split attention, whose maps have five dimensions, as ResNeSt's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gates = nn.Conv2d(3, 6, 1), nn.Conv2d(3, 6, 1)
        self.head = nn.Linear(72, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.conv(x).reshape(-1, 2, 3, 4, 6)
        gates = torch.sigmoid(self.gates(x.mean((2, 3), keepdim=True))).reshape(-1, 2, 3, 1, 1)
        return self.head((parts * gates).sum(1).flatten(1))


class Views(nn.Module):
    """Parameters and buffers that are seen in other shapes, as timm's LayerScale2d sees its."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 3, 1), nn.Linear(72, CLASSES)
        self.gamma, self.scale = nn.Parameter(torch.rand(3) + 0.5), nn.Parameter(torch.rand(()))
        self.pixels, self.rows = nn.Parameter(torch.rand(24)), nn.Parameter(torch.rand(1, 1, 4, 1))
        self.register_buffer("mean", torch.rand(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x) * self.gamma.view(1, -1, 1, 1) - self.mean[None, :, None, None]
        x = x / self.gamma.to(x.dtype).reshape(3, 1, 1) + self.scale.view(1, 1, 1)
        x = x * self.pixels.view(4, 6)
        return self.head((x + self.rows.view(4, 1)).flatten(1))


class Permuted(nn.Module):
    """Layer scale behind a permutation, as ConvNeXt's, with odd shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 6, 1), nn.Linear(144, CLASSES)
        self.gamma, self.rows = nn.Parameter(torch.rand(6)), nn.Parameter(torch.rand(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).permute(0, 2, 3, 1) * self.gamma
        y = (y / self.rows + self.rows).permute(0, 3, 1, 2)
        return self.head(y.flatten(1))


NETWORKS = {
    **{f"parameters {shape}": NetworkCase(partial(Parameters, shape), SHAPE) for shape in SHAPES},
    "a number": NetworkCase(partial(Parameters, ()), SHAPE, runs=RUNS, gradients=False),
    "a value a pixel": NetworkCase(
        partial(Parameters, (1, 3, 4, 6)), SHAPE, runs=RUNS, gradients=False
    ),
    "maps": NetworkCase(Maps, SHAPE, runs=RUNS),
    "five dimensions": NetworkCase(Splits, SHAPE),
    "viewed parameters": NetworkCase(Views, SHAPE),
    "behind a permutation": NetworkCase(Permuted, SHAPE),
}

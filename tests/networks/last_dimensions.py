"""Networks whose linear and normalization layers read the last dimension of [N, ..., C]."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.networks.case import EXACT, HALF, LEAST, MOVED, TENSOR, NetworkCase

SHAPE, CLASSES = (3, 4, 6), 4


class Mixer(nn.Module):
    """Pixels as rows of channels, mixed along pixels and along channels (Tolstikhin 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.along_pixels = nn.Sequential(nn.Linear(24, 5), nn.GELU(), nn.Linear(5, 24))
        self.along_channels = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        first, second = self.norms
        x = x + self.along_pixels(first(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.along_channels(second(x))
        logits: Tensor = self.head(x.mean(1))
        return logits


class Columns(nn.Module):
    """The columns of maps as they lie, which layers take as channels, and groups of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 4, 1), nn.LayerNorm(6, bias=False)
        self.wide, self.groups = nn.Linear(6, 8), nn.Linear(2, 3, bias=False)
        self.head = nn.Linear(4 * 4 * 12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.silu(self.wide(self.norm(self.stem(x))))
        logits: Tensor = self.head(self.groups(x.unflatten(3, (4, 2))).flatten(1))
        return logits


class Pyramid(nn.Module):
    """A pyramid's levels through linear layers, stacked in front of the batch, and added."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 6, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 6, 1)
        )
        self.levels = nn.ModuleList(nn.Linear(6, 5) for _ in range(2))
        self.head = nn.Linear(2 * 5 * 4 * 6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.stem[:2](x)
        coarse = self.stem[2:](fine).repeat_interleave(2, 2).repeat_interleave(2, dim=3)
        maps = [self.level(number, each) for number, each in enumerate((fine, coarse))]
        total, mean = torch.stack(maps).sum(0), torch.mean(torch.stack(maps, -5), dim=(0,))
        grid = torch.linspace(-1, 1, 6) * torch.arange(1.0, 3.0).repeat_interleave(5)[:, None, None]
        logits: Tensor = self.head((torch.cat([total, mean], 1) * grid).flatten(1))
        return logits

    def level(self, number: int, x: Tensor) -> Tensor:
        rows: Tensor = self.levels[number](x.flatten(2).transpose(1, 2))
        return rows.transpose(1, 2).unflatten(2, x.shape[2:])


class Coordinates(nn.Module):
    """Maps beside coordinates and zeros (Liu 2018), and a class token (Dosovitskiy 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.mixed = nn.Conv2d(3, 4, 1), nn.Conv2d(8, 6, 3, padding=1)
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.along_tokens, self.head = nn.Linear(25, 5), nn.Linear(5 * 6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x, (n, height, width) = self.stem(x), (len(x), *x.shape[2:])
        rows = torch.linspace(-1, 1, height, device=x.device).view(1, 1, height, 1)
        columns = torch.linspace(-1, 1, width, device=x.device).repeat(n, 1, height, 1)
        zeros = torch.zeros_like(x[:, :2])
        x = self.mixed(torch.cat([rows.expand(n, 1, height, width), x, columns, zeros], 1))
        tokens = torch.cat([self.token.expand(n, -1, -1), x.flatten(2).transpose(1, 2)], dim=1)
        logits: Tensor = self.head(self.along_tokens(tokens.transpose(1, 2)).flatten(1))
        return logits


RUNS = (EXACT, HALF, TENSOR)
NETWORKS = {
    "mixer": NetworkCase(Mixer, SHAPE, runs=RUNS, policies=(MOVED, LEAST)),
    "columns": NetworkCase(Columns, SHAPE, runs=RUNS, policies=(MOVED, LEAST)),
    "coordinates": NetworkCase(Coordinates, SHAPE, runs=RUNS, policies=(MOVED, LEAST)),
    "pyramid": NetworkCase(Pyramid, SHAPE, runs=RUNS, policies=(MOVED, LEAST)),
}

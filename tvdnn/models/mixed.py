"""The parts of Inception networks: normalized convolutions, and paths side by side."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .. import nn

Layers: TypeAlias = dict[str, torch.nn.Module]
Width: TypeAlias = Callable[[int], int]  # channels of a network as wide as asked for


class ConvNorm(torch.nn.Module):
    """A convolution without bias, batch normalization and ReLU; `settings` are the convolution's.

    Names and epsilon are those of torchvision's and Cadene's Inception networks.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        **settings: Any,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, bias=False, **settings)
        self.bn = nn.BatchNorm2d(out_channels, eps=0.001)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.bn(self.conv(x)))
        return y


class Mixed(torch.nn.Module):
    """Paths of named layers over one map, their results side by side in the channels.

    A path is layers that follow each other, or two such groups: each layer of the second then reads
    what the first makes.
    """

    def __init__(self, *paths: Layers | tuple[Layers, Layers]) -> None:
        super().__init__()
        pairs = [path if isinstance(path, tuple) else (path, {}) for path in paths]
        self._paths = [(tuple(trunk), tuple(ends)) for trunk, ends in pairs]
        for name, layer in (item for pair in pairs for part in pair for item in part.items()):
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        results = []
        for trunk, ends in self._paths:
            y = x
            for name in trunk:
                y = self.get_submodule(name)(y)
            results += [self.get_submodule(name)(y) for name in ends] or [y]
        return torch.cat(results, 1)


def row(in_channels: int, out_channels: int, size: int) -> ConvNorm:
    """A convolution with a kernel of one row that keeps the map's sides."""
    return ConvNorm(in_channels, out_channels, (1, size), padding=(0, size // 2))


def column(in_channels: int, out_channels: int, size: int) -> ConvNorm:
    """A convolution with a kernel of one column that keeps the map's sides."""
    return ConvNorm(in_channels, out_channels, (size, 1), padding=(size // 2, 0))


def truncated_normal(module: torch.nn.Module, std: float) -> None:
    """Initial weights of the Inception networks: normal of this deviation, between -2 and 2."""
    if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)):
        torch.nn.init.trunc_normal_(module.weight, std=std, a=-2, b=2)

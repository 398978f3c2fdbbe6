"""Inception-v3 (Szegedy et al., 2016) as torchvision lays it out."""

from functools import partial

import torch
from torch import Tensor

from .. import nn
from .convnet import scaled
from .mixed import ConvNorm, Layers, Mixed, Width, column, row, truncated_normal


class InceptionV3(torch.nn.Module):
    """Inception-v3 for maps of 299 x 299; `width` scales every hidden layer.

    With `aux_logits` it returns logits and the inner head's while it trains, as torchvision's does
    by default; without, it has no head and returns logits.
    """

    def __init__(
        self,
        num_classes: int = 1000,
        *,
        in_channels: int = 3,
        aux_logits: bool = False,
        dropout: float = 0.5,
        width: float = 1.0,
    ) -> None:
        super().__init__()
        w = partial(scaled, width=width)
        self.Conv2d_1a_3x3 = ConvNorm(in_channels, w(32), 3, stride=2)
        self.Conv2d_2a_3x3 = ConvNorm(w(32), w(32), 3)
        self.Conv2d_2b_3x3 = ConvNorm(w(32), w(64), 3, padding=1)
        self.maxpool1 = nn.MaxPool2d(3, stride=2)
        self.Conv2d_3b_1x1 = ConvNorm(w(64), w(80), 1)
        self.Conv2d_4a_3x3 = ConvNorm(w(80), w(192), 3)
        self.maxpool2 = nn.MaxPool2d(3, stride=2)
        wide = w(64) + w(64) + w(96)  # of the first kind of block, beside what it pools
        self.Mixed_5b = _mixed_5(w(192), w(32), w)
        self.Mixed_5c = _mixed_5(wide + w(32), w(64), w)
        self.Mixed_5d = _mixed_5(wide + w(64), w(64), w)
        self.Mixed_6a = _mixed_6a(wide + w(64), w)
        self.Mixed_6b = _mixed_6(w(384) + w(96) + wide + w(64), w(128), w)
        self.Mixed_6c = _mixed_6(4 * w(192), w(160), w)
        self.Mixed_6d = _mixed_6(4 * w(192), w(160), w)
        self.Mixed_6e = _mixed_6(4 * w(192), w(192), w)
        self.AuxLogits = _Head(4 * w(192), num_classes, w) if aux_logits else None
        self.Mixed_7a = _mixed_7a(4 * w(192), w)
        self.Mixed_7b = _mixed_7(w(320) + w(192) + 4 * w(192), w)
        self.Mixed_7c = _mixed_7(w(320) + 4 * w(384) + w(192), w)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(w(320) + 4 * w(384) + w(192), num_classes)
        last = self.AuxLogits.fc if self.AuxLogits is not None else None
        self.apply(lambda module: truncated_normal(module, 0.001 if module is last else 0.1))

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Logits [N, classes] of images [N, C, H, W], and those of the head before them."""
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))
        x = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(self.maxpool1(x)))
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(self.maxpool2(x))))
        x = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x)))))
        aux = self.AuxLogits(x) if self.AuxLogits is not None and self.training else None
        x = self.avgpool(self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x))))
        logits: Tensor = self.fc(torch.flatten(self.dropout(x), 1))
        return logits if aux is None else (logits, aux)


def _mixed_5(in_channels: int, pooled: int, w: Width) -> Mixed:
    """Kernels of 1, 5 and two of 3 beside average pooling, at 35 x 35."""
    return Mixed(
        {"branch1x1": ConvNorm(in_channels, w(64), 1)},
        {
            "branch5x5_1": ConvNorm(in_channels, w(48), 1),
            "branch5x5_2": ConvNorm(w(48), w(64), 5, padding=2),
        },
        {
            "branch3x3dbl_1": ConvNorm(in_channels, w(64), 1),
            "branch3x3dbl_2": ConvNorm(w(64), w(96), 3, padding=1),
            "branch3x3dbl_3": ConvNorm(w(96), w(96), 3, padding=1),
        },
        _averaged(in_channels, pooled),
    )


def _mixed_6a(in_channels: int, w: Width) -> Mixed:
    """From 35 x 35 to 17 x 17."""
    return Mixed(
        {"branch3x3": ConvNorm(in_channels, w(384), 3, stride=2)},
        {
            "branch3x3dbl_1": ConvNorm(in_channels, w(64), 1),
            "branch3x3dbl_2": ConvNorm(w(64), w(96), 3, padding=1),
            "branch3x3dbl_3": ConvNorm(w(96), w(96), 3, stride=2),
        },
        {"pool": nn.MaxPool2d(3, stride=2)},
    )


def _mixed_6(in_channels: int, inner: int, w: Width) -> Mixed:
    """Rows and columns of 7, once and twice, beside average pooling, at 17 x 17."""
    return Mixed(
        {"branch1x1": ConvNorm(in_channels, w(192), 1)},
        {
            "branch7x7_1": ConvNorm(in_channels, inner, 1),
            "branch7x7_2": row(inner, inner, 7),
            "branch7x7_3": column(inner, w(192), 7),
        },
        {
            "branch7x7dbl_1": ConvNorm(in_channels, inner, 1),
            "branch7x7dbl_2": column(inner, inner, 7),
            "branch7x7dbl_3": row(inner, inner, 7),
            "branch7x7dbl_4": column(inner, inner, 7),
            "branch7x7dbl_5": row(inner, w(192), 7),
        },
        _averaged(in_channels, w(192)),
    )


def _mixed_7a(in_channels: int, w: Width) -> Mixed:
    """From 17 x 17 to 8 x 8."""
    return Mixed(
        {
            "branch3x3_1": ConvNorm(in_channels, w(192), 1),
            "branch3x3_2": ConvNorm(w(192), w(320), 3, stride=2),
        },
        {
            "branch7x7x3_1": ConvNorm(in_channels, w(192), 1),
            "branch7x7x3_2": row(w(192), w(192), 7),
            "branch7x7x3_3": column(w(192), w(192), 7),
            "branch7x7x3_4": ConvNorm(w(192), w(192), 3, stride=2),
        },
        {"pool": nn.MaxPool2d(3, stride=2)},
    )


def _mixed_7(in_channels: int, w: Width) -> Mixed:
    """Paths that end in a row and a column of 3, beside average pooling, at 8 x 8."""
    return Mixed(
        {"branch1x1": ConvNorm(in_channels, w(320), 1)},
        (
            {"branch3x3_1": ConvNorm(in_channels, w(384), 1)},
            {
                "branch3x3_2a": row(w(384), w(384), 3),
                "branch3x3_2b": column(w(384), w(384), 3),
            },
        ),
        (
            {
                "branch3x3dbl_1": ConvNorm(in_channels, w(448), 1),
                "branch3x3dbl_2": ConvNorm(w(448), w(384), 3, padding=1),
            },
            {
                "branch3x3dbl_3a": row(w(384), w(384), 3),
                "branch3x3dbl_3b": column(w(384), w(384), 3),
            },
        ),
        _averaged(in_channels, w(192)),
    )


def _averaged(in_channels: int, out_channels: int) -> Layers:
    """A path of average pooling and a 1x1 convolution."""
    pool = nn.AvgPool2d(3, stride=1, padding=1)
    return {"pool": pool, "branch_pool": ConvNorm(in_channels, out_channels, 1)}


class _Head(torch.nn.Module):
    """A classifier of the inner map of 17 x 17."""

    def __init__(self, in_channels: int, num_classes: int, w: Width) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(5, stride=3)
        self.conv0 = ConvNorm(in_channels, w(128), 1)
        self.conv1 = ConvNorm(w(128), w(768), 5)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(w(768), num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.conv1(self.conv0(self.pool(x))))
        y: Tensor = self.fc(torch.flatten(x, 1))
        return y


inception_v3 = InceptionV3

"""Inception-v4 (Szegedy et al., 2017) under the names of Cadene's network, which timm's are too."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from .. import nn
from .convnet import scaled
from .mixed import ConvNorm, Mixed, Width, column, row


class InceptionV4(torch.nn.Module):
    """Inception-v4 for maps of 299 x 299; `width` scales every hidden layer."""

    def __init__(
        self,
        num_classes: int = 1000,
        *,
        in_channels: int = 3,
        dropout: float = 0.2,
        width: float = 1.0,
    ) -> None:
        super().__init__()
        w = partial(scaled, width=width)
        a = 4 * w(96)  # channels of the first kind of block
        b = w(384) + 2 * w(256) + w(128)
        c = 6 * w(256)
        self.features = nn.Sequential(
            *_stem(in_channels, w),
            _block_a(w(192) + 2 * w(96), w),
            *(_block_a(a, w) for _ in range(3)),
            _reduction_a(a, w),
            _block_b(w(384) + w(256) + a, w),
            *(_block_b(b, w) for _ in range(6)),
            _reduction_b(b, w),
            _block_c(w(192) + w(320) + b, w),
            *(_block_c(c, w) for _ in range(2)),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(dropout)
        self.last_linear = nn.Linear(c, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, classes] of images [N, C, H, W]."""
        x = torch.flatten(self.avgpool(self.features(x)), 1)
        y: Tensor = self.last_linear(self.dropout(x))
        return y


def _stem(in_channels: int, w: Width) -> Iterator[torch.nn.Module]:
    """From 299 x 299 to 35 x 35."""
    yield ConvNorm(in_channels, w(32), 3, stride=2)
    yield ConvNorm(w(32), w(32), 3)
    yield ConvNorm(w(32), w(64), 3, padding=1)
    pool, conv = nn.MaxPool2d(3, stride=2), ConvNorm(w(64), w(96), 3, stride=2)
    yield Mixed({"maxpool": pool}, {"conv": conv})
    wide = w(64) + w(96)
    yield Mixed(
        {"branch0": nn.Sequential(ConvNorm(wide, w(64), 1), ConvNorm(w(64), w(96), 3))},
        {
            "branch1": nn.Sequential(
                ConvNorm(wide, w(64), 1),
                row(w(64), w(64), 7),
                column(w(64), w(64), 7),
                ConvNorm(w(64), w(96), 3),
            )
        },
    )
    conv = ConvNorm(2 * w(96), w(192), 3, stride=2)
    yield Mixed({"conv": conv}, {"maxpool": nn.MaxPool2d(3, stride=2)})


def _block_a(in_channels: int, w: Width) -> Mixed:
    """Kernels of 1, 3 and two of 3 beside average pooling, at 35 x 35."""
    return Mixed(
        {"branch0": ConvNorm(in_channels, w(96), 1)},
        {
            "branch1": nn.Sequential(
                ConvNorm(in_channels, w(64), 1), ConvNorm(w(64), w(96), 3, padding=1)
            )
        },
        {
            "branch2": nn.Sequential(
                ConvNorm(in_channels, w(64), 1),
                ConvNorm(w(64), w(96), 3, padding=1),
                ConvNorm(w(96), w(96), 3, padding=1),
            )
        },
        {"branch3": _averaged(in_channels, w(96))},
    )


def _reduction_a(in_channels: int, w: Width) -> Mixed:
    """From 35 x 35 to 17 x 17."""
    return Mixed(
        {"branch0": ConvNorm(in_channels, w(384), 3, stride=2)},
        {
            "branch1": nn.Sequential(
                ConvNorm(in_channels, w(192), 1),
                ConvNorm(w(192), w(224), 3, padding=1),
                ConvNorm(w(224), w(256), 3, stride=2),
            )
        },
        {"branch2": nn.MaxPool2d(3, stride=2)},
    )


def _block_b(in_channels: int, w: Width) -> Mixed:
    """Rows and columns of 7, once and twice, beside average pooling, at 17 x 17."""
    return Mixed(
        {"branch0": ConvNorm(in_channels, w(384), 1)},
        {
            "branch1": nn.Sequential(
                ConvNorm(in_channels, w(192), 1),
                row(w(192), w(224), 7),
                column(w(224), w(256), 7),
            )
        },
        {
            "branch2": nn.Sequential(
                ConvNorm(in_channels, w(192), 1),
                column(w(192), w(192), 7),
                row(w(192), w(224), 7),
                column(w(224), w(224), 7),
                row(w(224), w(256), 7),
            )
        },
        {"branch3": _averaged(in_channels, w(128))},
    )


def _reduction_b(in_channels: int, w: Width) -> Mixed:
    """From 17 x 17 to 8 x 8."""
    return Mixed(
        {
            "branch0": nn.Sequential(
                ConvNorm(in_channels, w(192), 1), ConvNorm(w(192), w(192), 3, stride=2)
            )
        },
        {
            "branch1": nn.Sequential(
                ConvNorm(in_channels, w(256), 1),
                row(w(256), w(256), 7),
                column(w(256), w(320), 7),
                ConvNorm(w(320), w(320), 3, stride=2),
            )
        },
        {"branch2": nn.MaxPool2d(3, stride=2)},
    )


def _block_c(in_channels: int, w: Width) -> Mixed:
    """Paths that end in a row and a column of 3, beside average pooling, at 8 x 8."""
    return Mixed(
        {"branch0": ConvNorm(in_channels, w(256), 1)},
        (
            {"branch1_0": ConvNorm(in_channels, w(384), 1)},
            {"branch1_1a": row(w(384), w(256), 3), "branch1_1b": column(w(384), w(256), 3)},
        ),
        (
            {
                "branch2_0": ConvNorm(in_channels, w(384), 1),
                "branch2_1": column(w(384), w(448), 3),
                "branch2_2": row(w(448), w(512), 3),
            },
            {"branch2_3a": row(w(512), w(256), 3), "branch2_3b": column(w(512), w(256), 3)},
        ),
        {"branch3": _averaged(in_channels, w(256))},
    )


def _averaged(in_channels: int, out_channels: int) -> torch.nn.Module:
    """Average pooling that counts no padding, and a 1x1 convolution."""
    pool = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
    return nn.Sequential(pool, ConvNorm(in_channels, out_channels, 1))


inception_v4 = InceptionV4

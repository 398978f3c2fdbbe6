"""Shapes of networks' maps and weights at which kernels of several packages are measured."""

from typing import Final

VGG16_MAP: Final = (256, 224, 224, 64)  # the largest
ALEXNET_MAP: Final = (1024, 55, 55, 64)
FC6: Final = (4096, 25088)  # VGG-16's largest weight
PARTIALS: Final = (11, 512, 3, 3, 512)  # [splits, K, R, S, C] of a weight of VGG-16

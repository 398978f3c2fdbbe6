"""Launches of channel_scale.py to compile."""

from functools import partial

import torch

from tests.support.offline import Case
from tvdnn.kernels.language.channel_chunks import num_chunks
from tvdnn.kernels.pointwise.channel_scale import scale_channels, scale_channels_grad


def _scale(pixels: int, channels: int, dtype: torch.dtype, precision: str) -> None:
    x = torch.empty(2, pixels, channels, dtype=dtype, device="meta")
    scale = torch.empty(channels, device="meta")
    sums = torch.empty(2, num_chunks(pixels, channels), 1, channels, device="meta")
    scale_channels(x, scale, x, precision=precision)
    scale_channels_grad(x, x, scale, x, sums, precision=precision)


CASES = [
    Case("96 channels times a scale", partial(_scale, 3136, 96, torch.bfloat16, "ieee")),
    Case("769 channels times a scale", partial(_scale, 49, 769, torch.float32, "tf32")),
]

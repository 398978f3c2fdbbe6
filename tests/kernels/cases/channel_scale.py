"""Launches of channel_scale.py to compile."""

from functools import partial

import torch

from tests.offline import Case
from tvdnn.kernels.channel_scale import scale_channels, scale_channels_grad
from tvdnn.kernels.chunks import num_chunks


def _scale(pixels: int, channels: int, dtype: torch.dtype, precision: str) -> None:
    x = torch.empty(2, pixels, channels, dtype=dtype, device="meta")
    scale = torch.empty(channels, device="meta")
    sums = torch.empty(2, num_chunks(pixels, channels), 1, channels, device="meta")
    scale_channels(x, scale, x, precision=precision)
    scale_channels_grad(x, x, scale, x, sums, precision=precision)


CASES = [
    Case(f"{channels} channels times a scale, {precision}", partial(_scale, *settings))
    for pixels, channels in ((3136, 96), (49, 769))
    for dtype, precision in ((torch.bfloat16, "ieee"), (torch.float32, "tf32"))
    for settings in [(pixels, channels, dtype, precision)]
]

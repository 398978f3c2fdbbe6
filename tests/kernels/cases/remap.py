"""Launches of remap.py and strided.py to compile."""

from functools import partial

import torch

from tests.support.offline import Case
from tvdnn.kernels.copy.remap import MODES, Axis, remap, remap_grad
from tvdnn.kernels.copy.strided import copy_strided

OPTIONS = {"dtype": torch.bfloat16, "device": "meta"}


def _padded(mode: str, channels: int) -> None:
    x, y = (torch.empty(2, side, side, channels, **OPTIONS) for side in (14, 18))
    axes = (Axis(-2, mode=mode), Axis(-2, mode=mode), Axis())
    remap(x, y, axes=axes, precision="tf32")
    remap_grad(y, x, axes=axes)


def _shuffled(channels: int) -> None:
    x = torch.empty(2, 14, 14, channels, 2, 2, **OPTIONS)
    y = torch.empty(2, 14, 2, 14, 2, channels, **OPTIONS)
    copy_strided(x.permute(0, 1, 4, 2, 5, 3), y, precision="tf32")
    copy_strided(y, x.permute(0, 1, 4, 2, 5, 3))


CASES = [
    *(Case(mode, partial(_padded, mode, 64)) for mode in MODES),
    Case("odd channels", partial(_padded, "reflect", 21)),
    Case("pixel shuffle", partial(_shuffled, 16)),
]

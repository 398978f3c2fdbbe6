"""Launches of resize.py to compile."""

from functools import partial

import torch

from tests.support.offline import Case
from tvdnn.kernels.pointwise.resize import MODES, resize, resize_grad


def _resize(mode: str, channels: int) -> None:
    options = {"dtype": torch.bfloat16, "device": "meta"}
    x, y = (torch.empty(2, side, side, channels, **options) for side in (14, 28))
    settings = {"mode": mode, "scales": (0.5, 0.5)}
    resize(x, y, **settings)
    resize_grad(y, x, **settings)


CASES = [
    *(Case(mode, partial(_resize, mode, 64)) for mode in MODES),
    Case("odd channels", partial(_resize, "bilinear", 21)),
]

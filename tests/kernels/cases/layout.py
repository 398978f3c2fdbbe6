"""Launches of layout.py to compile."""

import torch

from tests.support.offline import Case
from tvdnn.kernels.copy.layout import add, cast, shuffle_channels, stage, unstage


def _flat() -> None:
    wide = torch.empty(8192, device="meta")
    narrow = torch.empty(8192, dtype=torch.bfloat16, device="meta")
    cast(wide, narrow)
    add(narrow, narrow, narrow)


def _ranges() -> None:
    for dtype in (torch.bfloat16, torch.float32):
        for channels in (29, 32, 256):
            whole = torch.empty(2, 28, 28, 4 * channels, dtype=dtype, device="meta")
            part = torch.empty(2, 28, 28, channels, dtype=dtype, device="meta")
            add(whole[..., channels : 2 * channels], part, whole[..., channels : 2 * channels])


def _stage() -> None:
    for channels in (3, 64):
        image = torch.empty(2, channels, 224, 224, device="meta")
        inside = torch.empty(2, 224, 224, channels, dtype=torch.bfloat16, device="meta")
        stage(image, inside)
        unstage(inside, image)


def _shuffle() -> None:
    for groups in (2, 58):
        x = torch.empty(2, 28, 28, 116, dtype=torch.bfloat16, device="meta")
        shuffle_channels(x, torch.empty_like(x), groups=groups)


CASES = [
    Case("cast and add", _flat),
    Case("add of ranges", _ranges),
    Case("stage and unstage", _stage),
    Case("shuffles of channels", _shuffle),
]

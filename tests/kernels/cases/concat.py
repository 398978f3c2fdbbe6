"""Launches of concat.py to compile."""

import torch

from tests.support.offline import Case
from tvdnn.kernels.copy.channels import copy_channels, zero_channels


def _ranges() -> None:
    for dtype in (torch.bfloat16, torch.float32):
        for channels in (29, 32, 58, 256):
            whole = torch.empty(2, 28, 28, 4 * channels, dtype=dtype, device="meta")
            part = torch.empty(2, 28, 28, channels, dtype=dtype, device="meta")
            copy_channels(part, whole[..., channels : 2 * channels])
            zero_channels(whole[..., channels : 2 * channels])


CASES = [Case("copies and zeros of channels", _ranges)]

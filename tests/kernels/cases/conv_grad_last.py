"""Launches of conv_grad_last.py to compile."""

from functools import partial

import torch

from tests.support.offline import Case
from tvdnn.kernels.conv.grad_input_add_mask import conv2d_grad_last


def _launch(side: int, c: int, k: int) -> None:
    def maps(channels: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(64, side, side, channels, dtype=dtype, device="meta")

    packed = torch.empty(c, 1, 1, k, dtype=torch.bfloat16, device="meta")
    conv2d_grad_last(maps(k), packed, maps(c), maps(c // 8, torch.uint8), maps(c))


CASES = [Case("bottleneck", partial(_launch, 56, 256, 64), wgmma=True)]

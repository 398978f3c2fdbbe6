"""Launches of conv_grad_bias.py to compile."""

from functools import partial

import torch

from tests.kernels.cases.conv import empty
from tests.support.offline import Case
from tvdnn.kernels.conv.grad_bias import conv2d_grad_bias, sum_cells


def _grad_bias(side: int, cell: int, dtype: torch.dtype) -> None:
    dy = empty(8, side, side, 64, dtype=dtype)
    sums = empty(8, side // cell, side // cell, 64)
    if cell > 1:
        sum_cells(dy, sums)
    conv2d_grad_bias(dy if cell == 1 else sums, empty(4, 64), first=True, cell=cell)


CASES = [
    Case(f"{cell=} {dtype=}", partial(_grad_bias, 56, cell, dtype))
    for cell in (1, 2, 4, 8)
    for dtype in (torch.bfloat16, torch.float32)
]

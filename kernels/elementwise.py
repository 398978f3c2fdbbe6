"""Launches of kernels that work element by element over contiguous tensors."""

from typing import Final

import triton
from torch import Tensor

BLOCK: Final = 4096
NUM_WARPS: Final = 8


def launch(kernel: triton.JITFunction, *tensors: Tensor, **constants: str | float) -> None:
    """Launch over tensors of as many elements each; `kernel` takes their number behind them."""
    numel = tensors[0].numel()
    if numel == 0:
        return
    grid = (triton.cdiv(numel, BLOCK),)
    kernel[grid](*tensors, numel, **constants, BLOCK=BLOCK, num_warps=NUM_WARPS)

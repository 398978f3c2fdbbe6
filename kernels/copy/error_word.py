"""The error word of copies that host threads make: it stops the updates of a step."""

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _raise_flag_kernel(word_ptr, flag_ptr):
    if tl.load(word_ptr, volatile=True) != 0:
        tl.store(flag_ptr, 1.0)


def raise_flag(word: Tensor, flag: Tensor) -> None:
    """Set the float32 `flag` [1] to 1 if the int32 `word` [1] is not 0.

    The word may lie in pinned host memory.
    """
    _raise_flag_kernel[(1,)](word, flag, num_warps=1)


def raise_flag_reference(word: Tensor, flag: Tensor) -> None:
    """Computes `raise_flag` in torch."""
    if word.item():
        flag.fill_(1.0)

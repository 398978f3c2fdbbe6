"""Copies by a kernel, between device memory and pinned host memory, beside the copy engines."""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK: Final = 4096
NUM_WARPS: Final = 8
PROGRAMS: Final = 8  # few are enough for the link: 4 reach it storing, 8 loading (H200, 2026-11)


@triton.jit(do_not_specialize=["numel"])
def _copy_kernel(source_ptr, target_ptr, numel, BLOCK: tl.constexpr):
    stride = tl.num_programs(0).to(tl.int64) * BLOCK
    for start in range(tl.program_id(0).to(tl.int64) * BLOCK, numel, stride):
        offs = start + tl.arange(0, BLOCK)
        mask = offs < numel
        values = tl.load(source_ptr + offs, mask=mask, other=0)
        tl.store(target_ptr + offs, values, mask=mask)


def copy(source: Tensor, target: Tensor, *, programs: int = PROGRAMS) -> None:
    """target = source, contiguous and of the same bytes; either may be pinned host memory."""
    words = source.view(-1).view(torch.uint8)
    whole = 8 if words.numel() % 8 == 0 else 1
    kind = torch.int64 if whole == 8 else torch.uint8
    numel = words.numel() // whole
    if numel == 0:
        return
    out = target.view(-1).view(torch.uint8).view(kind)
    grid = (min(programs, triton.cdiv(numel, BLOCK)),)
    _copy_kernel[grid](words.view(kind), out, numel, BLOCK=BLOCK, num_warps=NUM_WARPS)


def copy_reference(source: Tensor, target: Tensor, *, programs: int = PROGRAMS) -> None:
    """What `copy` computes."""
    target.view(-1).copy_(source.view(-1))

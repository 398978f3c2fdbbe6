"""Copies of bytes between device and pinned host memory by a kernel, instead of a copy engine."""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

TO_HOST_PROGRAMS: Final = 4  # which store 52 GB/s to pinned memory (H200, 2026-11)
TO_DEVICE_PROGRAMS: Final = 8  # which load 51
BLOCK: Final = 16384  # twice 16 bytes a thread
NUM_WARPS: Final = 16


@triton.jit
def _transfer_kernel(source_ptr, target_ptr, numel, BLOCK: tl.constexpr):
    """Blocks of bytes, each program every so many."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    for _ in range(tl.program_id(0), tl.cdiv(numel, BLOCK), tl.num_programs(0)):
        mask = offs < numel
        tl.store(target_ptr + offs, tl.load(source_ptr + offs, mask=mask, other=0), mask=mask)
        offs += tl.num_programs(0).to(tl.int64) * BLOCK


def transfer(source: Tensor, target: Tensor) -> None:
    """Copy bytes, uint8 [n], between the device and pinned host memory."""
    programs = TO_DEVICE_PROGRAMS if source.device.type == "cpu" else TO_HOST_PROGRAMS
    _transfer_kernel[(programs,)](
        source, target, source.numel(), BLOCK=BLOCK, num_warps=NUM_WARPS
    )  # fmt: skip


def transfer_reference(source: Tensor, target: Tensor) -> None:
    """The same by torch."""
    target.copy_(source, non_blocking=True)

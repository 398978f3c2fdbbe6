"""The rate of the L2 cache: a kernel copies the same bytes again and again inside of it."""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

NBYTES: Final = 16 << 20  # of a copy; source and target fit the 50 MB of an H100 or H200
COPIES: Final = 200
BLOCK: Final = 4096  # float32 values
RESIDENT: Final = 4  # programs of a multiprocessor


@triton.jit
def _copies_kernel(source, target, blocks, copies, BLOCK: tl.constexpr):
    """Each program copies another share of the blocks each time, past its L1 cache."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    for turn in range(tl.cdiv(copies * blocks - program, programs)):
        block = (program + turn * programs) % blocks
        offsets = block * BLOCK + tl.arange(0, BLOCK)
        values = tl.load(source + offsets, cache_modifier=".cg")
        tl.store(target + offsets, values, cache_modifier=".cg")


def copy_often(source: Tensor, target: Tensor, copies: int, programs: int) -> None:
    """Copy float32 values, a multiple of BLOCK, `copies` times in one launch."""
    _copies_kernel[(programs,)](source, target, source.numel() // BLOCK, copies, BLOCK)


def operands(nbytes: int = NBYTES, device: str = "cuda") -> tuple[Tensor, Tensor]:
    source = torch.randn(nbytes // 4, device=device)
    return source, torch.zeros_like(source)


def programs_of_device() -> int:
    return RESIDENT * torch.cuda.get_device_properties("cuda").multi_processor_count

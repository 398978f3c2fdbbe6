"""Buckets of gradients that are summed over processes, and the status of a step in all of them."""

from collections.abc import Sequence
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..copy.labels import OTHER_STEPS, OTHERS
from ..language.cost import costing, updates

ALIGNMENT: Final = 128  # elements of float32: 512 bytes, as other addresses are aligned
BLOCK: Final = 2048  # elements of a program
NUM_WARPS: Final = 8
TENSORS: Final = 8  # tensors that share a launch, at most


def bucket_offsets(sizes: Sequence[int], alignment: int = ALIGNMENT) -> tuple[int, ...]:
    """Where tensors of so many elements begin in a bucket, and behind them its elements."""
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + -(-size // alignment) * alignment)
    return tuple(offsets)


@triton.jit(do_not_specialize=["sizes", "starts"])
def _pack_kernel(
    source_ptrs, sizes, starts, bucket_ptr, weight_ptr, total_ptr,
    WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The second grid axis is the source's index in the tuples of pointers, sizes and starts."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    for i in tl.static_range(len(source_ptrs)):
        if tl.program_id(1) == i:
            mask = offs < sizes[i]
            values = tl.load(source_ptrs[i] + offs, mask=mask, other=0.0)
            if WEIGHTED:
                values *= tl.load(weight_ptr) / tl.load(total_ptr)
            tl.store(bucket_ptr + starts[i] + offs, values, mask=mask)


def pack(
    sources: Sequence[Tensor], bucket: Tensor, *, weight: Tensor | None = None,
    total: Tensor | None = None, alignment: int = ALIGNMENT,
) -> None:  # fmt: skip
    """Copy contiguous tensors into a flat bucket, times weight[0] / total[0] if given.

    All are float32 or bfloat16. Tensors begin at multiples of `alignment` elements. What lies
    between them is left as it is.
    """
    sizes = [source.numel() for source in sources]
    starts = bucket_offsets(sizes, alignment)[:-1]
    for first in range(0, len(sizes), TENSORS):
        part = slice(first, first + TENSORS)
        grid = (triton.cdiv(max(sizes[part]), BLOCK), len(sizes[part]))
        words = (bucket if weight is None else weight, bucket if total is None else total)
        _pack_kernel[grid](
            tuple(sources[part]), tuple(sizes[part]), starts[part], bucket, *words,
            WEIGHTED=weight is not None, BLOCK=BLOCK, num_warps=NUM_WARPS,
        )  # fmt: skip


@triton.jit(do_not_specialize=["processes"])
def _check_status_kernel(
    status_ptr, own_ptr, flag_ptr, scale_ptr, step_ptr, record_ptr, processes, WORDS: tl.constexpr
):  # fmt: skip
    tl.store(scale_ptr, tl.load(scale_ptr) * (tl.load(own_ptr) / tl.load(status_ptr)))
    fault = 0
    for i in tl.static_range(1, WORDS - 1):
        if tl.load(status_ptr + i) != tl.load(own_ptr + i) * processes:
            fault = OTHER_STEPS
    if tl.load(status_ptr + WORDS - 1) != 0.0:
        fault = OTHERS
    if fault != 0:
        tl.store(flag_ptr, 1.0)
        if tl.load(record_ptr) == 0:
            tl.store(record_ptr, fault.to(tl.int64))
            tl.store(record_ptr + 1, tl.load(step_ptr))


@costing(updates(2))
def check_status(
    status: Tensor, own: Tensor, flag: Tensor, scale: Tensor, step: Tensor, record: Tensor, *,
    processes: int,
) -> None:  # fmt: skip
    """Scale a step's gradients, and note a fault of other processes, or a step that differs.

    `status` float32 [6] is the sum over so many processes of what each has `own` [5], and behind
    that of its `flag`. The first words are samples: float32 `scale` [1] is multiplied by the share
    that this process has. All other words must be the same in each. At a fault the float32
    `flag` [1] becomes 1, and the int64 `record` [2] tells which and at which `step` int64 [1],
    unless it tells of a fault already. `labels.fault_of` reads it.
    """
    operands = status, own, flag, scale, step, record
    _check_status_kernel[(1,)](*operands, processes, WORDS=status.numel(), num_warps=1)


def pack_reference(
    sources: Sequence[Tensor], bucket: Tensor, *, weight: Tensor | None = None,
    total: Tensor | None = None, alignment: int = ALIGNMENT,
) -> None:  # fmt: skip
    """Computes `pack` in torch."""
    starts = bucket_offsets([source.numel() for source in sources], alignment)
    for source, start in zip(sources, starts, strict=False):
        values = source.flatten()
        if weight is not None and total is not None:
            values = values * (weight / total)
        bucket[start : start + source.numel()] = values


def check_status_reference(
    status: Tensor, own: Tensor, flag: Tensor, scale: Tensor, step: Tensor, record: Tensor, *,
    processes: int,
) -> None:  # fmt: skip
    """Computes `check_status` in torch."""
    scale.mul_(own[0] / status[0])
    differs = (status[1:-1] != own[1:] * processes).any()
    code = torch.where(differs, OTHER_STEPS.value, 0)
    code = torch.where(status[-1] != 0.0, OTHERS.value, code)
    flag.copy_(torch.where(code != 0, torch.ones_like(flag), flag))
    told = torch.stack([code, step[0]])
    record.copy_(torch.where((code != 0) & (record[0] == 0), told, record))

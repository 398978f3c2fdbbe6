"""Buckets of gradients that are summed over processes, and what these tell one another beside."""

from collections.abc import Sequence
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..copy.labels import OTHERS
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
    """Copy contiguous float32 tensors into a flat bucket, times weight[0] / total[0] if given.

    The bucket is float32 or bfloat16. Tensors begin at multiples of `alignment` elements. What lies
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


@triton.jit
def _hear_kernel(verdict_ptr, flag_ptr, step_ptr, record_ptr, loss_ptr):
    if tl.load(verdict_ptr) != 0.0:
        tl.store(flag_ptr, 1.0)
        if tl.load(record_ptr) == 0:
            tl.store(record_ptr, OTHERS)
            tl.store(record_ptr + 1, tl.load(step_ptr))
    tl.store(loss_ptr, tl.load(verdict_ptr + 1))


@costing(updates(1))
def hear(verdict: Tensor, flag: Tensor, step: Tensor, record: Tensor, loss: Tensor) -> None:
    """Set loss[0] to verdict[1], and note a fault if verdict[0] is not 0.

    The float32 `flag` [1] becomes 1 then, and the int64 `record` [2] tells that another process has
    a fault at `step` int64 [1], unless it tells of one already. `labels.fault_of` reads it.
    """
    _hear_kernel[(1,)](verdict, flag, step, record, loss, num_warps=1)


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


def hear_reference(
    verdict: Tensor, flag: Tensor, step: Tensor, record: Tensor, loss: Tensor
) -> None:
    """Computes `hear` in torch."""
    loss[0] = verdict[1]
    heard = verdict[:1] != 0.0
    flag.copy_(torch.where(heard, torch.ones_like(flag), flag))
    told = torch.stack([torch.full_like(step[0], OTHERS.value), step[0]])
    record.copy_(torch.where(heard & (record[:1] == 0), told, record))

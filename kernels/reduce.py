"""Sums in a fixed order: of partial gradients, and of the rows of a map.

Nothing here adds by atomics, so a sum has the same bits in whatever pieces its terms arrive.
"""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

SUM_BLOCK: Final = 128
SUM_UNROLL: Final = 8  # loads under way at a time
ROWS_BLOCK: Final = (128, 64)  # [rows, columns]; 64 bfloat16 columns are one 128-byte line


@triton.jit(do_not_specialize=["num_partials"])
def sum_partials_kernel(
    partials_ptr, grad_ptr, num_partials, numel,
    size_1, size_2, size_3, stride_0, stride_1, stride_2, stride_3,
    FIRST: tl.constexpr, UNROLL: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Add partials of shape [size_0, size_1, size_2, size_3] to a gradient of any strides."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    mask = offs < numel
    index_2 = offs // size_3
    index_1 = index_2 // size_2
    grad_ptrs = grad_ptr + (offs % size_3) * stride_3 + (index_2 % size_2) * stride_2
    grad_ptrs += (index_1 % size_1) * stride_1 + (index_1 // size_1) * stride_0
    total = tl.load(grad_ptrs, mask=mask & (not FIRST), other=0.0)
    partial_ptrs = partials_ptr + offs
    for _ in tl.range(0, num_partials, loop_unroll_factor=UNROLL):
        total += tl.load(partial_ptrs, mask=mask, other=0.0)
        partial_ptrs += numel
    tl.store(grad_ptrs, total, mask=mask)


@triton.jit(do_not_specialize=["num_rows", "group", "slice_rows"])
def sum_rows_kernel(
    rows_ptr, partials_ptr, num_rows, num_columns, group, slice_rows, splits,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
) -> None:  # fmt: skip
    """Partial (g, j) of the columns' sums: over slice j of the rows of group g."""
    pid_partial = tl.program_id(1).to(tl.int64)
    start = pid_partial // splits * group + pid_partial % splits * slice_rows
    stop = tl.minimum(start + slice_rows, (pid_partial // splits + 1) * group)
    stop = tl.minimum(stop, num_rows)
    offs_r = tl.arange(0, BLOCK_R)
    offs_c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask_c = offs_c < num_columns
    acc = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for first in range(0, (stop - start).to(tl.int32), BLOCK_R):
        tile_ptrs = rows_ptr + (start + first) * num_columns
        tile_ptrs += offs_r[:, None] * num_columns + offs_c[None, :]
        mask = (offs_r < stop - start - first)[:, None] & mask_c[None, :]
        acc += tl.load(tile_ptrs, mask=mask, other=0.0).to(tl.float32)
    tl.store(partials_ptr + pid_partial * num_columns + offs_c, tl.sum(acc, 0), mask=mask_c)


def sum_partials(partials: Tensor, grad: Tensor, *, first: bool) -> None:
    """grad = p0 + p1 + ... (`first`) or grad + p0 + p1 + ..., in index order.

    `grad` is a float32 parameter gradient [K, C/g, R, S] of any strides, or of one or two
    dimensions. Partials are contiguous rows [K, R, S, C/g], or of grad's shape, under any leading
    dimensions. One call with all of them has the bits of calls with consecutive pieces.
    """
    view = _partial_view(grad)
    if grad.numel() == 0:
        return
    numel = grad.numel()
    sum_partials_kernel[(triton.cdiv(numel, SUM_BLOCK),)](
        partials, grad, partials.numel() // numel, numel, *view.shape[1:], *view.stride(),
        FIRST=first, UNROLL=SUM_UNROLL, BLOCK=SUM_BLOCK, num_warps=SUM_BLOCK // 32,
    )  # fmt: skip


def sum_rows(rows: Tensor, partials: Tensor, *, group: int) -> None:
    """Sums of the columns of rows [M, F] into float32 partials [G, F] or [G, splits, F].

    Partial g of G = ceil(M / group) sums the rows [g * group, (g + 1) * group), each of its slices
    an equal share of ceil(group / splits) rows; the last may be short or empty.
    """
    num_rows, num_columns = rows.shape
    if num_rows == 0:
        return
    splits = _splits(partials)
    block_r, block_c = ROWS_BLOCK
    grid = (triton.cdiv(num_columns, block_c), triton.cdiv(num_rows, group) * splits)
    sum_rows_kernel[grid](
        rows, partials, num_rows, num_columns, group, triton.cdiv(group, splits), splits,
        BLOCK_R=block_r, BLOCK_C=block_c, num_warps=8,  # 4 spill where rows end inside a line
    )  # fmt: skip


def sum_partials_reference(partials: Tensor, grad: Tensor, *, first: bool) -> None:
    """Plain `sum_partials`, to the same bits."""
    logical = grad.permute(0, 2, 3, 1) if grad.dim() == 4 else grad
    if first:
        logical.zero_()
    for partial in partials.reshape(-1, *logical.shape):
        logical.add_(partial)


def sum_rows_reference(rows: Tensor, partials: Tensor, *, group: int) -> None:
    """Plain `sum_rows`."""
    splits = _splits(partials)
    shares = partials.view(-1, splits, rows.shape[1])
    slice_rows = triton.cdiv(group, splits)
    for index, start in enumerate(range(0, rows.shape[0], group)):
        members = rows[start : start + group].float()
        for share in range(splits):
            part = members[share * slice_rows : (share + 1) * slice_rows]
            shares[index, share] = part.sum(0)


def _splits(partials: Tensor) -> int:
    return partials.shape[1] if partials.dim() == 3 else 1


def _partial_view(grad: Tensor) -> Tensor:
    """The gradient in the order of a partial, [K, R, S, C/g]; missing dimensions are 1."""
    if grad.dim() == 4:
        return grad.permute(0, 2, 3, 1)
    return grad[(..., *(None,) * (4 - grad.dim()))]

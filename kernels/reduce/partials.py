"""Sums of partial gradients and of the rows of a map, in a fixed order.

Nothing is added by atomics. A sum has the same bits whether its terms come in one call or in
several.
"""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from ..language import device

# Elements of a program, and of partials in flight together. 11 partials of 512->512 3x3 filters
# take 36 us, and 45 us with twice the elements (H200, 2026-11-21).
SUM_TILE: Final = (512, 6144)
FEW_TILE: Final = 128  # elements of a program where larger programs would not occupy the GPU
MOST_LOADS: Final = 32  # partials in flight together, at most
INTERPRETED_LOADS: Final = 2  # MOST_LOADS in the interpreter, where every load takes time
PARTIAL_WARPS: Final = 4
ROWS_BLOCK: Final = (128, 64)  # [rows, columns]; 64 bfloat16 columns are one 128-byte line


@triton.jit
def add_partials(total, ptrs, mask, num_partials, numel, LOADS: tl.constexpr) -> tl.tensor:
    """total + p0 + p1 + ..., in this order, of partials `numel` elements apart at `ptrs`.

    LOADS partials are in flight together. Beyond the last partial -0 is added, which changes no
    sum.
    """
    for first in range(0, num_partials, LOADS):
        values = ()
        for i in tl.static_range(LOADS):
            values += (tl.load(ptrs, mask=mask & (first + i < num_partials), other=-0.0),)
            ptrs += numel
        for i in tl.static_range(LOADS):
            total += values[i]
    return total


@triton.jit(do_not_specialize=["num_partials", "tiles_c"])
def _sum_partials_kernel(
    partials_ptr, grad_ptr, num_partials, numel, channels, taps, columns, tiles_c,
    stride_k, stride_c, stride_r, stride_s,
    FIRST: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_T: tl.constexpr, LOADS: tl.constexpr,
) -> None:  # fmt: skip
    """A program sums all taps of BLOCK_C channels of one output channel k.

    Tap `row * columns + column` is an element of a filter. Partials are ordered [k, tap, channel].
    """
    pid = tl.program_id(0)
    k = (pid // tiles_c).to(tl.int64)
    c = pid % tiles_c * BLOCK_C + tl.arange(0, BLOCK_C)[:, None]  # [BLOCK_C, 1]
    tap = tl.arange(0, BLOCK_T)[None, :]  # [1, BLOCK_T]
    mask = (c < channels) & (tap < taps)
    offs = k * stride_k + c.to(tl.int64) * stride_c
    offs += tap // columns * stride_r + tap % columns * stride_s
    total = tl.zeros((BLOCK_C, BLOCK_T), tl.float32)
    if not FIRST:
        total = tl.load(grad_ptr + offs, mask=mask, other=0.0)
    ptrs = partials_ptr + k * taps * channels + (tap * channels + c)
    total = add_partials(total, ptrs, mask, num_partials, numel, LOADS)
    tl.store(grad_ptr + offs, total, mask=mask)


@triton.jit(do_not_specialize=["num_rows", "group", "slice_rows"])
def sum_rows_kernel(
    rows_ptr, partials_ptr, num_rows, num_columns, group, slice_rows, splits,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
) -> None:  # fmt: skip
    """Partial (g, j) is the sum of BLOCK_C columns over slice j of the rows of group g."""
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
    """grad = p0 + p1 + ... where `first`, else grad + p0 + p1 + ..., in index order.

    `grad` is the float32 gradient of a parameter: [K, C/g, R, S], [K, C/g, S] or [K, C] of any
    strides, or contiguous of another shape. Partials are contiguous float32 with leading dimensions
    before [K, R, S, C/g], or before grad's shape; those of [K, C/g, S] are [splits, K, 1, S, C/g].
    One call with all partials gives the bits of several calls with consecutive partials.
    """
    if grad.numel() == 0:
        return
    view = filters_of(grad, partials)
    rows, channels, _, columns = view.shape
    taps = view[0, 0].numel()
    tile = partial_tile(rows, channels, taps, *SUM_TILE)
    tiles_c = triton.cdiv(channels, tile["BLOCK_C"])
    _sum_partials_kernel[(rows * tiles_c,)](
        partials, grad, partials.numel() // grad.numel(), grad.numel(), channels, taps, columns,
        tiles_c, *view.stride(), FIRST=first, **tile,
    )  # fmt: skip


def partial_tile(
    rows: int, channels: int, taps: int, elements: int, in_flight: int
) -> dict[str, int]:
    """Compile-time arguments of a program that sums partials of a gradient [rows, channels, taps].

    A program has at most `elements` elements, and `in_flight` elements of partials in flight.
    """
    interpreted = device.interpreted()
    if rows * channels * taps < elements * device.num_sms() and not interpreted:
        elements = FEW_TILE
    block_t = triton.next_power_of_2(taps)
    block_c = min(triton.next_power_of_2(channels), max(elements // block_t, 1))
    loads = max(in_flight // (block_c * block_t), 1)
    loads = min(loads, INTERPRETED_LOADS if interpreted else MOST_LOADS)
    return {"BLOCK_C": block_c, "BLOCK_T": block_t, "LOADS": loads, "num_warps": PARTIAL_WARPS}


def sum_rows(rows: Tensor, partials: Tensor, *, group: int) -> None:
    """Sums of rows [M, F] into float32 partials [G, F] or [G, splits, F], G = ceil(M / group).

    Partial g covers the rows [g * group, (g + 1) * group). Each of its splits covers
    ceil(group / splits) consecutive rows; the last may have fewer or none.
    """
    num_rows, num_columns = rows.shape
    if num_rows == 0:
        return
    splits = _splits(partials)
    block_r, block_c = ROWS_BLOCK
    grid = (triton.cdiv(num_columns, block_c), triton.cdiv(num_rows, group) * splits)
    sum_rows_kernel[grid](
        rows, partials, num_rows, num_columns, group, triton.cdiv(group, splits), splits,
        BLOCK_R=block_r, BLOCK_C=block_c, num_warps=8,  # 4 warps spill where rows end inside a line
    )  # fmt: skip


def sum_partials_reference(partials: Tensor, grad: Tensor, *, first: bool) -> None:
    """Computes `sum_partials` in torch, to the same bits."""
    logical = grad
    if grad.dim() == 4 or _are_rows(grad, partials):
        logical = filters_of(grad, partials).permute(0, 2, 3, 1)
    if first:
        logical.zero_()
    for partial in partials.reshape(-1, *logical.shape):
        logical.add_(partial)


def sum_rows_reference(rows: Tensor, partials: Tensor, *, group: int) -> None:
    """Computes `sum_rows` in torch."""
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


def filters_of(grad: Tensor, partials: Tensor) -> Tensor:
    """View of a parameter or its gradient as filters [K, C/g, R, S]; a matrix has filters 1x1."""
    if grad.dim() == 4:
        return grad
    if _are_rows(grad, partials):
        return grad[:, :, None]
    matrix = grad if grad.dim() == 2 else grad.view(-1, *(grad.shape[-1:] or (1,)))
    return matrix[:, :, None, None]


def _are_rows(grad: Tensor, partials: Tensor) -> bool:
    """Whether the gradient is of filters of one row, [K, C/g, S]."""
    return grad.dim() == 3 and partials.dim() == 5

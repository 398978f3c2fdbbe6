"""Copies between views of any strides, which permute, concatenate and split maps."""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from ..language.rounding import stored, stored_reference

NUM_WARPS: Final = 8
TILE: Final = 4096  # elements of a tile
TILE_SIDE: Final = 64  # columns of a tile where the source's columns are not contiguous
OUTER: Final = 4  # dimensions outside a tile's rows and columns
MOST_DIMENSIONS: Final = OUTER + 2


@triton.jit(do_not_specialize=["size_1", "size_2", "size_3"])
def _copy_strided_kernel(
    src_ptr, dst_ptr, size_1, size_2, size_3, rows, columns,
    src_0, src_1, src_2, src_3, src_row, src_column,
    dst_0, dst_1, dst_2, dst_3, dst_row, dst_column,
    PRECISION: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(rows, BLOCK_R)
    place = tl.program_id(0).to(tl.int64)
    row = place % tiles * BLOCK_R
    place //= tiles
    i_3 = place % size_3
    place //= size_3
    i_2 = place % size_2
    place //= size_2
    i_1 = place % size_1
    i_0 = place // size_1
    column = tl.program_id(1).to(tl.int64) * BLOCK_C
    src_ptr += i_0 * src_0 + i_1 * src_1 + i_2 * src_2 + i_3 * src_3
    dst_ptr += i_0 * dst_0 + i_1 * dst_1 + i_2 * dst_2 + i_3 * dst_3
    offs_r = row + tl.arange(0, BLOCK_R)[:, None]  # [BLOCK_R, 1]
    offs_c = column + tl.arange(0, BLOCK_C)[None, :]  # [1, BLOCK_C]
    mask = (offs_r < rows) & (offs_c < columns)
    tile = tl.load(src_ptr + offs_r * src_row + offs_c * src_column, mask=mask, other=0.0)
    tile = stored(tile, dst_ptr.dtype.element_ty, PRECISION)
    tl.store(dst_ptr + offs_r * dst_row + offs_c * dst_column, tile, mask=mask)


def copy_strided(src: Tensor, dst: Tensor, *, precision: str = "ieee") -> None:
    """dst = src, floats of one shape and of any strides.

    Adjacent dimensions that are contiguous in both tensors count as one. At most MOST_DIMENSIONS
    may remain.
    """
    if src.numel() == 0:
        return
    dims = _merged(src, dst)
    column = len(dims) - 1
    row = _row_of(dims, column)
    outer = [dim for place, dim in enumerate(dims) if place not in (row, column)]
    outer = [(1, 0, 0)] * (OUTER - len(outer)) + outer
    (rows, src_row, dst_row), (columns, src_column, dst_column) = dims[row], dims[column]
    block_c = min(triton.next_power_of_2(columns), TILE_SIDE if src_column != 1 else TILE)
    block_r = min(triton.next_power_of_2(rows), max(TILE // block_c, 1))
    count = triton.cdiv(rows, block_r)
    for size, _, _ in outer:
        count *= size
    _copy_strided_kernel[(count, triton.cdiv(columns, block_c))](
        src, dst, *(size for size, _, _ in outer[1:]), rows, columns,
        *(stride for _, stride, _ in outer), src_row, src_column,
        *(stride for _, _, stride in outer), dst_row, dst_column,
        PRECISION=precision, BLOCK_R=block_r, BLOCK_C=block_c, num_warps=NUM_WARPS,
    )  # fmt: skip


def _merged(src: Tensor, dst: Tensor) -> list[tuple[int, int, int]]:
    """Size and both strides of each merged dimension, and at least two of them."""
    dims: list[tuple[int, int, int]] = []
    for size, src_stride, dst_stride in zip(src.shape, src.stride(), dst.stride(), strict=True):
        if size == 1:
            continue
        if dims:
            before, src_before, dst_before = dims[-1]
            if (src_before, dst_before) == (size * src_stride, size * dst_stride):
                dims[-1] = before * size, src_stride, dst_stride
                continue
        dims.append((size, src_stride, dst_stride))
    return [(1, 0, 0)] * (2 - len(dims)) + dims


def _row_of(dims: list[tuple[int, int, int]], column: int) -> int:
    """The dimension of a tile's rows: that of the least source stride, if it is not the columns."""
    nearest = min(range(column + 1), key=lambda place: dims[place][1] or 1 << 62)
    return nearest if nearest != column else column - 1


def copy_strided_reference(src: Tensor, dst: Tensor, *, precision: str = "ieee") -> None:
    """Computes `copy_strided` in torch."""
    dst.copy_(stored_reference(src, dst.dtype, precision))

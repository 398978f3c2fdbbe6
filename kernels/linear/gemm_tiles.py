"""Tiles of matrix products: where a tile starts, its sum, and its epilogue."""

import triton
import triton.language as tl

from ..language.rounding import add_product, stored


@triton.jit
def _load_tile(
    source, row, column, end_row, num_columns,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DESCRIPTOR: tl.constexpr,
):  # fmt: skip
    """Tile [ROWS, COLUMNS] at (row, column) of a contiguous matrix, 0 from row `end_row` on."""
    if DESCRIPTOR:
        tile = source.load([row, column])
    else:
        offs_r = row + tl.arange(0, ROWS)[:, None]
        offs_c = column + tl.arange(0, COLUMNS)[None, :]
        mask = (offs_r < end_row) & (offs_c < num_columns)
        tile = tl.load(source + (offs_r.to(tl.int64) * num_columns + offs_c), mask=mask, other=0.0)
    return tile


@triton.jit
def tile_start(
    m_size, n_size, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TILE_GROUP: tl.constexpr
) -> tl.tuple:
    """Row and column where this program's tile starts.

    Consecutive programs take the tiles of a column in TILE_GROUP rows of tiles, then the next
    column.
    """
    pid = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(m_size, BLOCK_M), tl.cdiv(n_size, BLOCK_N)
    per_group = TILE_GROUP * tiles_n
    first_m = pid // per_group * TILE_GROUP
    rows = tl.minimum(tiles_m - first_m, TILE_GROUP)
    return (first_m + pid % per_group % rows) * BLOCK_M, pid % per_group // rows * BLOCK_N


@triton.jit
def product_tile(
    a, b, m, n, m_size, n_size, k_size, start_k, end_k,
    A_BY_K: tl.constexpr, B_BY_K: tl.constexpr, DESCRIPTORS: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The tile at (m, n) of A B, summed over terms [start_k, end_k): float32 [BLOCK_M, BLOCK_N]."""
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in tl.range(start_k, end_k, BLOCK_K, num_stages=NUM_STAGES):
        if A_BY_K:
            left = _load_tile(a, k, m, end_k, m_size, BLOCK_K, BLOCK_M, DESCRIPTORS).T
        else:
            left = _load_tile(a, m, k, m_size, k_size, BLOCK_M, BLOCK_K, DESCRIPTORS)
        if B_BY_K:
            right = _load_tile(b, k, n, end_k, n_size, BLOCK_K, BLOCK_N, DESCRIPTORS)
        else:
            right = _load_tile(b, n, k, n_size, k_size, BLOCK_N, BLOCK_K, DESCRIPTORS).T
        acc = add_product(acc, left, right, PRECISION)
    return acc


@triton.jit
def store_tile(
    acc, m, n, m_size, n_size, bias_ptr, mask_ptr, out_ptr, row_stride, share, share_stride, scale,
    RELU: tl.constexpr, OUT_PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
) -> None:  # fmt: skip
    """Finish the sums acc [BLOCK_M, BLOCK_N] of the tile at (m, n) of a share, and store them.

    Without shares `share` is None. The share's offset is added last. Added first, it raises one
    variant from 166 to 226 registers (triton 3.9, sm_90a).
    """
    offs_m, offs_n = m + tl.arange(0, BLOCK_M), n + tl.arange(0, BLOCK_N)
    inside_n = offs_n < n_size
    inside = (offs_m < m_size)[:, None] & inside_n[None, :]
    offs = offs_m.to(tl.int64)[:, None] * row_stride + offs_n[None, :]
    out = finish(
        acc, bias_ptr, mask_ptr, offs, offs_n, inside, inside_n, scale, out_ptr.dtype.element_ty,
        RELU, OUT_PRECISION,
    )  # fmt: skip
    if share is not None:
        out_ptr += share.to(tl.int64) * share_stride
    tl.store(out_ptr + offs, out, mask=inside)


@triton.jit
def finish(
    acc, bias_ptr, mask_ptr, offs, offs_n, inside, inside_n, scale, dtype: tl.constexpr,
    RELU: tl.constexpr, OUT_PRECISION: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The epilogue of a product [rows, columns]: bias, then ReLU, or scale and mask.

    Values are rounded to `dtype` where separate ops would round them, before the scale, and last as
    products of OUT_PRECISION read them.
    """
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + offs_n, mask=inside_n, other=0.0)[None, :]
    out = acc.to(dtype)
    if RELU:
        out = tl.where(out <= 0, 0.0, out)  # keeps NaN
    if mask_ptr is not None:
        out = (out.to(tl.float32) * scale).to(dtype)
        out = tl.where(tl.load(mask_ptr + offs, mask=inside, other=0.0) <= 0, 0.0, out)
    return stored(out, dtype, OUT_PRECISION)

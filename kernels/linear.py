"""Products of a fully connected layer: its output, and the gradients of input, weight and bias.

One tiled product serves all three matrix products; a tile's shape and its order of sums depend on
the layer, never on the number of samples.
"""

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional
from triton.tools.tensor_descriptor import TensorDescriptor

from . import device
from .reduce import sum_rows, sum_rows_reference

TILE_GROUP: Final = 8  # rows of tiles that walk the columns together, to meet in the L2 cache
DESCRIPTOR_ALIGNMENT: Final = 16  # bytes, of a descriptor's base and row stride


@dataclass(frozen=True, slots=True)
class Tiles:
    """Rows and columns of an output tile, summed in steps of `depth`."""

    rows: int
    columns: int
    depth: int
    num_warps: int
    num_stages: int


@triton.jit
def _load_tile(
    source, row, column, end_row, num_columns,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DESCRIPTOR: tl.constexpr,
):  # fmt: skip
    """Tile [ROWS, COLUMNS] at (row, column) of a row-major matrix, zero from `end_row` on."""
    if DESCRIPTOR:
        tile = source.load([row, column])
    else:
        offs_r = row + tl.arange(0, ROWS)[:, None]
        offs_c = column + tl.arange(0, COLUMNS)[None, :]
        mask = (offs_r < end_row) & (offs_c < num_columns)
        tile = tl.load(source + (offs_r.to(tl.int64) * num_columns + offs_c), mask=mask, other=0.0)
    return tile


@triton.jit
def _tile_place(pid, tiles_m, tiles_n, TILE_GROUP: tl.constexpr):
    """Row and column of tiles: TILE_GROUP rows at a time, a column of them after the other."""
    per_group = TILE_GROUP * tiles_n
    first_m = pid // per_group * TILE_GROUP
    rows = tl.minimum(tiles_m - first_m, TILE_GROUP)
    return first_m + pid % per_group % rows, pid % per_group // rows


@triton.jit
def _matmul_kernel(
    a, b, bias_ptr, out_ptr, m_size, n_size, k_size, group,
    A_BY_K: tl.constexpr, B_BY_K: tl.constexpr, HAS_BIAS: tl.constexpr, DESCRIPTORS: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TILE_GROUP: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """out[g] = A B over share g of the sum, `group` of its k_size terms; g is the second grid axis.

    A is stored [m_size, k_size], or by K: [k_size, m_size]; B [n_size, k_size], or by K. More than
    one share needs both by K: only rows end at a share's end.
    """
    tiles_m, tiles_n = tl.cdiv(m_size, BLOCK_M), tl.cdiv(n_size, BLOCK_N)
    pid_m, pid_n = _tile_place(tl.program_id(0), tiles_m, tiles_n, TILE_GROUP)
    m, n = pid_m * BLOCK_M, pid_n * BLOCK_N
    share = tl.program_id(1)
    start_k = share * group
    end_k = tl.minimum(start_k + group, k_size)
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
        acc = tl.dot(left, right, acc, input_precision=PRECISION)
    offs_m, offs_n = m + tl.arange(0, BLOCK_M), n + tl.arange(0, BLOCK_N)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + offs_n, mask=offs_n < n_size, other=0.0)[None, :]
    mask = (offs_m < m_size)[:, None] & (offs_n < n_size)[None, :]
    rows = share.to(tl.int64) * m_size + offs_m
    ptrs = out_ptr + (rows[:, None] * n_size + offs_n[None, :])
    tl.store(ptrs, acc.to(out_ptr.dtype.element_ty), mask=mask)


def _tiles(dtype: torch.dtype, precision: str) -> Tiles:
    """Tiles of a product, by what multiplies: tensor cores on bfloat16 or TF32, or plain FMA."""
    hopper = device.capability()[0] >= 9 or device.interpreted()
    if dtype == torch.bfloat16:
        return Tiles(128, 128, 64, 8, 4) if hopper else Tiles(128, 128, 32, 8, 3)
    if precision == "tf32":
        return Tiles(128, 128, 32, 8, 3) if hopper else Tiles(128, 64, 32, 4, 3)
    return Tiles(64, 64, 16, 4, 2)


def _describable(matrix: Tensor) -> bool:
    """Whether the copy engine can read tiles of a row-major matrix."""
    stride_nbytes = matrix.shape[1] * matrix.element_size()
    return (matrix.data_ptr() | stride_nbytes) % DESCRIPTOR_ALIGNMENT == 0


def _uses_descriptors(a: Tensor, b: Tensor) -> bool:
    """Whether tiles come by the copy engine: bfloat16, whose tiles need no transposing copy."""
    has_engine = device.capability()[0] >= 9 or device.interpreted()
    return has_engine and a.dtype == torch.bfloat16 and _describable(a) and _describable(b)


def _matmul(
    a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor, *,
    a_by_k: bool, b_by_k: bool, precision: str, group: int | None = None,
) -> None:  # fmt: skip
    """out [..., M, N] = A B, the sum over K in shares of `group`; by default in one."""
    k_size, m_size = a.shape if a_by_k else a.shape[::-1]
    n_size = b.shape[1] if b_by_k else b.shape[0]
    tiles = _tiles(a.dtype, precision)
    descriptors = _uses_descriptors(a, b) and (group is None or group % tiles.depth == 0)
    sources: tuple[object, object] = (a, b)
    if descriptors:
        a_block = [tiles.depth, tiles.rows] if a_by_k else [tiles.rows, tiles.depth]
        b_block = [tiles.depth, tiles.columns] if b_by_k else [tiles.columns, tiles.depth]
        sources = (
            TensorDescriptor.from_tensor(a, a_block), TensorDescriptor.from_tensor(b, b_block)
        )  # fmt: skip
    num_tiles = triton.cdiv(m_size, tiles.rows) * triton.cdiv(n_size, tiles.columns)
    _matmul_kernel[(num_tiles, 1 if group is None else triton.cdiv(k_size, group))](
        *sources, bias, out, m_size, n_size, k_size, k_size if group is None else group,
        A_BY_K=a_by_k, B_BY_K=b_by_k, HAS_BIAS=bias is not None, DESCRIPTORS=descriptors,
        PRECISION=precision if a.dtype == torch.float32 else "ieee",
        BLOCK_M=tiles.rows, BLOCK_N=tiles.columns, BLOCK_K=tiles.depth,
        TILE_GROUP=TILE_GROUP, NUM_STAGES=tiles.num_stages, num_warps=tiles.num_warps,
    )  # fmt: skip


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, *, precision: str) -> None:
    """y [N, O] = x [N, F] weight^T + bias; weight [O, F] in x's dtype, bias float32 [O]."""
    if x.shape[0] == 0:
        return
    _matmul(x, weight, bias, y, a_by_k=False, b_by_k=False, precision=precision)


def linear_grad_input(dy: Tensor, weight: Tensor, dx: Tensor, *, precision: str) -> None:
    """dx [N, F] = dy [N, O] weight; weight [O, F] in dy's dtype."""
    if dy.shape[0] == 0:
        return
    _matmul(dy, weight, None, dx, a_by_k=False, b_by_k=True, precision=precision)


def linear_grad_weight(
    x: Tensor, dy: Tensor, partials: Tensor, *, group: int, precision: str
) -> None:
    """partials[g] = dy^T x over samples [g * group, (g + 1) * group): float32 [G, O, F], from zero.

    With one group `partials` may be the gradient [O, F] itself.
    """
    if x.shape[0] == 0:
        return
    _matmul(dy, x, None, partials, a_by_k=True, b_by_k=True, precision=precision, group=group)


def linear_grad_bias(dy: Tensor, partials: Tensor, *, group: int) -> None:
    """partials[g] = sum of dy over samples [g * group, (g + 1) * group): float32 [G, O]."""
    sum_rows(dy, partials.view(-1, dy.shape[1]), group=group)


def _wide(tensor: Tensor) -> Tensor:
    """float32 on the CPU; on a GPU the tensor's dtype, which cuBLAS sums in float32."""
    return tensor if tensor.is_cuda else tensor.float()


def linear_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, *, precision: str
) -> None:
    """What `linear` computes; `precision` is torch's own setting."""
    product = functional.linear(_wide(x), _wide(weight)).float()
    y.copy_(product if bias is None else product + bias)


def linear_grad_input_reference(dy: Tensor, weight: Tensor, dx: Tensor, *, precision: str) -> None:
    """What `linear_grad_input` computes; `precision` is torch's own setting."""
    dx.copy_(_wide(dy) @ _wide(weight))


def linear_grad_weight_reference(
    x: Tensor, dy: Tensor, partials: Tensor, *, group: int, precision: str
) -> None:
    """What `linear_grad_weight` computes; `precision` is torch's own setting."""
    shares = partials.view(-1, dy.shape[1], x.shape[1])
    groups = zip(x.split(group), dy.split(group), strict=True)
    for share, (inputs, gradients) in zip(shares, groups, strict=False):
        share.copy_(gradients.float().T @ inputs.float())


def linear_grad_bias_reference(dy: Tensor, partials: Tensor, *, group: int) -> None:
    """What `linear_grad_bias` computes."""
    sum_rows_reference(dy, partials.view(-1, dy.shape[1]), group=group)

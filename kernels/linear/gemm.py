"""The tiled matrix product under all passes of a fully connected layer.

A tile's shape and its order of sums depend on the layer, never on the number of samples. A sum that
is cut leaves `partials` behind, which a kernel of its own adds in their order.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ..language import device
from ..language.overrides import configured
from .gemm_tiles import finish, product_tile, tile_start

TILE_GROUP: Final = 8  # rows of tiles that walk the columns together, to meet in the L2 cache
DESCRIPTOR_ALIGNMENT: Final = 16  # bytes, of a descriptor's base and row stride
SUM_BLOCK: Final = 1024
SUM_WARPS: Final = 4


@dataclass(frozen=True, slots=True)
class Tiles:
    """Rows and columns of an output tile, summed in steps of `depth`."""

    rows: int
    columns: int
    depth: int
    num_warps: int
    num_stages: int


MOST_DEPTH: Final = 64
WIDE: Final = 8192
NARROW: Final = 1024
PLAIN_TILES: Final = Tiles(64, 64, 32, 4, 2)
PLAIN_SUM_TILES: Final = Tiles(64, 64, 16, 4, 2)  # of both by K, where deeper ones spill
UNDESCRIBED_TILES: Final = Tiles(64, 64, 32, 4, 3)
SMALL_SHARE_TILES: Final = Tiles(128, 128, 64, 8, 3)  # where shared memory holds no larger ones


@dataclass(frozen=True)
class Product:
    """A B over K: A is stored [M, K], or by K: [K, M]; B [N, K], or by K.

    The sum may be cut into shares of `group` terms; where not both are stored by K, a group of more
    than one share holds whole steps of every tile's depth, since only rows end at a share's end.
    `narrow` tiles leave registers to what follows the sum; of `turned` operands K are samples.
    """

    a: Tensor
    b: Tensor
    a_by_k: bool
    b_by_k: bool
    precision: str
    group: int | None = None
    narrow: bool = False
    turned: bool = False

    @property
    def sizes(self) -> tuple[int, int, int]:
        """M, N and K."""
        k_size, m_size = self.a.shape if self.a_by_k else self.a.shape[::-1]
        return m_size, self.b.shape[1] if self.b_by_k else self.b.shape[0], k_size

    @property
    def grid(self) -> tuple[int, int]:
        """Programs: output tiles, and shares of the sum."""
        tiles, (m_size, n_size, k_size) = self._tiles, self.sizes
        num_tiles = triton.cdiv(m_size, tiles.rows) * triton.cdiv(n_size, tiles.columns)
        return num_tiles, 1 if self.group is None else triton.cdiv(k_size, self.group)

    def operands(self) -> tuple[Any, ...]:
        """A kernel's leading arguments: a, b, m_size, n_size, k_size, group."""
        group = self.sizes[2] if self.group is None else self.group
        if not self._by_descriptors():
            return self.a, self.b, *self.sizes, group
        tiles = self._tiles
        blocks = ([tiles.rows, tiles.depth], [tiles.columns, tiles.depth])
        by_k = (self.a_by_k, self.b_by_k)
        described = [
            TensorDescriptor.from_tensor(matrix, block[::-1] if reverse else block)
            for matrix, block, reverse in zip((self.a, self.b), blocks, by_k, strict=True)
        ]
        return *described, *self.sizes, group

    def constants(self) -> dict[str, Any]:
        """A kernel's compile-time arguments and launch options."""
        tiles = self._tiles
        return {
            "A_BY_K": self.a_by_k,
            "B_BY_K": self.b_by_k,
            "DESCRIPTORS": self._by_descriptors(),
            "PRECISION": self.precision if self.a.dtype == torch.float32 else "ieee",
            "BLOCK_M": tiles.rows,
            "BLOCK_N": tiles.columns,
            "BLOCK_K": tiles.depth,
            "TILE_GROUP": TILE_GROUP,
            "NUM_STAGES": tiles.num_stages,
            "num_warps": tiles.num_warps,
        }

    @cached_property
    def _tiles(self) -> Tiles:
        """Those that are configured, by default the rule's."""
        return configured("linear", self._rule(), self._facts)

    def _facts(self) -> dict[str, Any]:
        """What a product is configured for: never the number of samples."""
        m_size, n_size, k_size = self.sizes
        over_samples = self.a_by_k or self.turned
        return {
            "sizes": (m_size, n_size) if over_samples else (n_size, k_size),
            "dtype": self.a.dtype,
            "precision": self.precision,
            "a_by_k": self.a_by_k,
            "b_by_k": self.b_by_k,
            "shares": self.group is not None,
            "narrow": self.narrow,
            "turned": self.turned,
        }

    def _rule(self) -> Tiles:
        """Tiles by what multiplies: tensor cores on bfloat16 or TF32, or plain FMA."""
        if self.a.dtype == torch.float32 and self.precision != "tf32":
            return PLAIN_SUM_TILES if self.a_by_k else PLAIN_TILES
        if device.capability()[0] < 9 and not device.interpreted():
            return Tiles(128, 64, 32, 8, 3)
        if self.a.dtype == torch.float32:
            return self._tf32_tiles()
        return self._bfloat16_tiles() if self._describable() else UNDESCRIBED_TILES

    def _bfloat16_tiles(self) -> Tiles:
        """Few columns ask for small tiles, which occupy all SMs; many, or shares, for large ones.

        A weight gradient's are narrow, which leaves registers to an update's operands. On an H200
        (2026-11-21) VGG-16's 4096 -> 4096 layer takes 24 us by 64 x 64 tiles, 33 by 128 x 128; its
        4096 -> 1000 layer 14 us by 64 x 32, 18 by 64 x 64, and the input's gradient 10.4 by
        64 x 128, 12.1 by 64 x 64.
        """
        if self.a_by_k:
            return Tiles(128, 64, 64, 8, 4)
        if self.group is not None:
            return Tiles(128, 256, 64, 8, 4) if device.holds_large_tiles() else SMALL_SHARE_TILES
        _, columns, depth = self.sizes
        if columns > WIDE:
            return Tiles(128, 128, 64, 8, 4)
        if self.b_by_k:
            return Tiles(64, 64 if depth > NARROW else 128, 64, 4, 6 if depth > NARROW else 5)
        return Tiles(64, 64, 64, 4, 6) if columns > NARROW else Tiles(64, 32, 128, 4, 5)

    def _tf32_tiles(self) -> Tiles:
        """Hopper's warpgroup products read TF32 operands by row alone.

        Where one is stored by K, two warps, or half of their 64 rows, choose the products before
        them, which need no transposed copy.
        """
        if self.a_by_k:
            return Tiles(32, 128, 32, 4, 4)
        if self.b_by_k:
            return Tiles(64, 64, 32, 2, 4)
        if self.narrow or device.interpreted() or not self._describable():
            return Tiles(64, 64, 32, 4, 4)  # NumPy's products have other bits in other shapes
        return Tiles(128, 128, 32, 4, 3)

    def _by_descriptors(self) -> bool:
        """Whether tiles come by the copy engine: those that need no transposing copy."""
        has_engine = device.capability()[0] >= 9 or device.interpreted()
        whole = self.group is None or self.group % MOST_DEPTH == 0
        by_row = not (self.a_by_k or self.b_by_k)
        rounded = self.precision == "tf32" and by_row
        suits = self.a.dtype == torch.bfloat16 or rounded
        return has_engine and whole and suits and self._describable()

    def _describable(self) -> bool:
        return describable(self.a) and describable(self.b)


def share_of(terms: int, shares: int) -> int:
    """Terms of each share of a sum but the last one, in whole steps of any tile."""
    return triton.cdiv(triton.cdiv(terms, shares), MOST_DEPTH) * MOST_DEPTH


def describable(matrix: Tensor) -> bool:
    """Whether the copy engine can read tiles of a row-major matrix."""
    stride_nbytes = matrix.shape[1] * matrix.element_size()
    return (matrix.data_ptr() | stride_nbytes) % DESCRIPTOR_ALIGNMENT == 0


@triton.jit
def _product_kernel(
    a, b, m_size, n_size, k_size, group, bias_ptr, mask_ptr, out_ptr, row_stride, share_stride,
    scale, RELU: tl.constexpr, OUT_PRECISION: tl.constexpr,
    A_BY_K: tl.constexpr, B_BY_K: tl.constexpr, DESCRIPTORS: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TILE_GROUP: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """A B over a share of the sum, the second grid axis, to its place in `out`."""
    m, n = tile_start(m_size, n_size, BLOCK_M, BLOCK_N, TILE_GROUP)
    share = tl.program_id(1)
    acc = product_tile(
        a, b, m, n, m_size, n_size, k_size,
        share * group, tl.minimum(share * group + group, k_size),
        A_BY_K, B_BY_K, DESCRIPTORS, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K, NUM_STAGES,
    )  # fmt: skip
    offs_m, offs_n = m + tl.arange(0, BLOCK_M), n + tl.arange(0, BLOCK_N)
    inside_n = offs_n < n_size
    inside = (offs_m < m_size)[:, None] & inside_n[None, :]
    offs = offs_m.to(tl.int64)[:, None] * row_stride + offs_n[None, :]
    out = finish(
        acc, bias_ptr, mask_ptr, offs, offs_n, inside, inside_n, scale, out_ptr.dtype.element_ty,
        RELU, OUT_PRECISION,
    )  # fmt: skip
    tl.store(out_ptr + share.to(tl.int64) * share_stride + offs, out, mask=inside)


@triton.jit
def _sum_kernel(
    partials_ptr, bias_ptr, mask_ptr, out_ptr, num_shares, n_size, scale,
    RELU: tl.constexpr, OUT_PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[row] = the shares of partials[row], added from the first on, and then as in `finish`."""
    row = tl.program_id(0).to(tl.int64)
    offs_n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside_n = offs_n < n_size
    inside = inside_n[None, :]
    acc = tl.zeros((1, BLOCK), tl.float32)
    for share in tl.range(num_shares, loop_unroll_factor=4):
        offs = (row * num_shares + share) * n_size + offs_n[None, :]
        acc += tl.load(partials_ptr + offs, mask=inside, other=0.0)
    offs = row * n_size + offs_n[None, :]
    out = finish(
        acc, bias_ptr, mask_ptr, offs, offs_n, inside, inside_n, scale, out_ptr.dtype.element_ty,
        RELU, OUT_PRECISION,
    )  # fmt: skip
    tl.store(out_ptr + offs, out, mask=inside)


@dataclass(frozen=True, slots=True)
class Ending:
    """What becomes of a product: the bias [N] is added, then ReLU, or it is masked and scaled.

    `out_precision` is that of the products which read a float32 output.
    """

    bias: Tensor | None = None
    relu: bool = False
    mask: Tensor | None = None
    scale: float = 1.0
    out_precision: str = "ieee"

    def constants(self) -> dict[str, Any]:
        """A kernel's compile-time arguments."""
        return {"RELU": self.relu, "OUT_PRECISION": self.out_precision}


def multiply(product: Product, out: Tensor, ending: Ending) -> None:
    """out [..., M, N] = the product and its ending."""
    m_size, n_size, _ = product.sizes
    _launch(product, out, (n_size, m_size * n_size), ending)


def multiply_split(product: Product, partials: Tensor, out: Tensor, ending: Ending) -> None:
    """As `multiply`, by sums of the product's shares in float32 `partials` [M, shares, N]."""
    n_size = product.sizes[1]
    _launch(product, partials, (product.grid[1] * n_size, n_size), Ending())
    sum_shares(partials, out, ending)


def _launch(product: Product, out: Tensor, strides: tuple[int, int], ending: Ending) -> None:
    _product_kernel[product.grid](
        *product.operands(), ending.bias, ending.mask, out, *strides, ending.scale,
        **ending.constants(), **product.constants(),
    )  # fmt: skip


def sum_shares(partials: Tensor, out: Tensor, ending: Ending) -> None:
    """out [M, N] = partials [M, shares, N] added over the shares in their order, and the ending."""
    m_size, shares, n_size = partials.shape
    _sum_kernel[(m_size, triton.cdiv(n_size, SUM_BLOCK))](
        partials, ending.bias, ending.mask, out, shares, n_size, ending.scale,
        **ending.constants(), BLOCK=SUM_BLOCK, num_warps=SUM_WARPS,
    )  # fmt: skip

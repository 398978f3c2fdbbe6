"""The tiled matrix product of all passes of a linear layer.

A tile's shape and its order of sums depend on the layer, never on the number of samples. A sum may
be cut into shares (split-K). Their partial sums are then added in order by a kernel of its own.
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
from .gemm_tiles import finish, product_tile, store_tile, tile_start

TILE_GROUP: Final = 8  # rows of tiles that run along the columns together, for the L2 cache
DESCRIPTOR_ALIGNMENT: Final = 16  # alignment of a descriptor's base and row stride, in bytes
SUM_BLOCK: Final = 1024  # columns of a program that sums shares
SUM_WARPS: Final = 4


@dataclass(frozen=True, slots=True)
class Tiles:
    """Rows and columns of an output tile, which is summed in steps of `depth` terms."""

    rows: int
    columns: int
    depth: int
    num_warps: int
    num_stages: int


MOST_DEPTH: Final = 64  # depth of a tile, at most
WIDE: Final = 8192  # columns, or terms, from which a product takes large tiles, or shares
NARROW: Final = 1024  # columns, or terms, up to which a product takes small tiles
PLAIN_TILES: Final = Tiles(64, 64, 32, 4, 2)  # for exact float32 products by FMA
PLAIN_SUM_TILES: Final = Tiles(64, 64, 16, 4, 2)  # PLAIN_TILES by K: deeper tiles spill registers
UNDESCRIBED_TILES: Final = Tiles(64, 64, 32, 4, 3)  # for bfloat16 without descriptors
SMALL_SHARE_TILES: Final = Tiles(128, 128, 64, 8, 3)  # for shares on GPUs with less shared memory


@dataclass(frozen=True)
class Product:
    """A product of matrices A [M, K] and B [K, N]."""

    a: Tensor  # [M, K], or by K: [K, M]
    b: Tensor  # [N, K], or by K: [K, N]
    a_by_k: bool
    b_by_k: bool
    precision: str
    # Terms of a share of the sum; None for one share. Unless both are stored by K, several shares
    # need whole steps of every tile's depth, because loads are masked along rows alone.
    group: int | None = None
    narrow: bool = False  # whether tiles leave registers to an epilogue
    transposed: bool = False  # whether K are samples, in operands that were transposed

    @property
    def sizes(self) -> tuple[int, int, int]:
        """M, N and K."""
        k_size, m_size = self.a.shape if self.a_by_k else self.a.shape[::-1]
        return m_size, self.b.shape[1] if self.b_by_k else self.b.shape[0], k_size

    @property
    def grid(self) -> tuple[int, int]:
        """Numbers of output tiles and of shares of the sum."""
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
        """The configured tiles, or else the rule's."""
        return configured("linear", self._rule(), self._facts)

    def _facts(self) -> dict[str, Any]:
        """The sizes and types that a configuration is for, without the number of samples."""
        m_size, n_size, k_size = self.sizes
        over_samples = self.a_by_k or self.transposed
        return {
            "sizes": (m_size, n_size) if over_samples else (n_size, k_size),
            "dtype": self.a.dtype,
            "precision": self.precision,
            "a_by_k": self.a_by_k,
            "b_by_k": self.b_by_k,
            "shares": self.group is not None,
            "narrow": self.narrow,
            "transposed": self.transposed,
        }

    def _rule(self) -> Tiles:
        """Tiles for the unit that multiplies: tensor cores on bfloat16 or TF32, or plain FMA."""
        if self.a.dtype == torch.float32 and self.precision != "tf32":
            return PLAIN_SUM_TILES if self.a_by_k else PLAIN_TILES
        if device.capability()[0] < 9 and not device.interpreted():
            return Tiles(128, 64, 32, 8, 3)
        if self.a.dtype == torch.float32:
            return self._tf32_tiles()
        return self._bfloat16_tiles() if self._describable() else UNDESCRIBED_TILES

    def _bfloat16_tiles(self) -> Tiles:
        """Small tiles for few columns, to occupy all SMs. Large tiles for many columns or shares.

        Those of a weight gradient are narrow and leave registers to an update. On an H200
        (2026-11-21) VGG-16's 4096 -> 4096 layer takes 24 us with 64 x 64 tiles and 33 us with
        128 x 128. Its 4096 -> 1000 layer takes 14 us with 64 x 32 and 18 us with 64 x 64; the
        gradient of its input takes 10.4 us with 64 x 128 and 12.1 us with 64 x 64.
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
        """Tiles for TF32 products. Hopper's warpgroup products read TF32 operands by row alone.

        Where an operand is stored by K, tiles of two warps or of 32 rows make Triton choose
        mma.sync, which needs no transposed copy.
        """
        if self.a_by_k:
            return Tiles(32, 128, 32, 4, 4)
        if self.b_by_k:
            return Tiles(64, 64, 32, 2, 4)
        if self.narrow or device.interpreted() or not self._describable():
            return Tiles(64, 64, 32, 4, 4)  # NumPy's products have other bits in other shapes
        return Tiles(128, 128, 32, 4, 3)

    def _by_descriptors(self) -> bool:
        """Whether the copy engine (TMA) loads tiles: those that need no transposed copy."""
        has_engine = device.capability()[0] >= 9 or device.interpreted()
        whole = self.group is None or self.group % MOST_DEPTH == 0
        by_row = not (self.a_by_k or self.b_by_k)
        rounded = self.precision == "tf32" and by_row
        suits = self.a.dtype == torch.bfloat16 or rounded
        return has_engine and whole and suits and self._describable()

    def _describable(self) -> bool:
        return describable(self.a) and describable(self.b)


def share_of(terms: int, shares: int) -> int:
    """Terms of each of `shares` shares of a sum but the last, a multiple of every tile's depth."""
    return triton.cdiv(triton.cdiv(terms, shares), MOST_DEPTH) * MOST_DEPTH


def describable(matrix: Tensor) -> bool:
    """Whether the copy engine can move tiles of a contiguous matrix: it is aligned to 16 bytes."""
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
    """A program computes one tile of A B over one share of the sum, the second grid axis."""
    m, n = tile_start(m_size, n_size, BLOCK_M, BLOCK_N, TILE_GROUP)
    share = tl.program_id(1)
    acc = product_tile(
        a, b, m, n, m_size, n_size, k_size,
        share * group, tl.minimum(share * group + group, k_size),
        A_BY_K, B_BY_K, DESCRIPTORS, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K, NUM_STAGES,
    )  # fmt: skip
    store_tile(
        acc, m, n, m_size, n_size, bias_ptr, mask_ptr, out_ptr, row_stride, share, share_stride,
        scale, RELU, OUT_PRECISION, BLOCK_M, BLOCK_N,
    )  # fmt: skip


@triton.jit
def _sum_kernel(
    partials_ptr, bias_ptr, mask_ptr, out_ptr, num_shares, n_size, scale,
    RELU: tl.constexpr, OUT_PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[row] = the shares of partials[row], added from the first on, then `finish`."""
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
class LinearEpilogue:
    """What is done with a product before it is stored: bias and ReLU, or mask and scale."""

    bias: Tensor | None = None  # [N]
    relu: bool = False
    mask: Tensor | None = None  # [M, N]; the output is 0 where the mask is not above zero
    scale: float = 1.0  # factor of outputs that have a mask
    out_precision: str = "ieee"  # precision of the products that read a float32 output

    def constants(self) -> dict[str, Any]:
        """A kernel's compile-time arguments."""
        return {"RELU": self.relu, "OUT_PRECISION": self.out_precision}


def multiply(product: Product, out: Tensor, epilogue: LinearEpilogue) -> None:
    """out [..., M, N] = the product, of each share where it has shares, and the epilogue."""
    m_size, n_size, _ = product.sizes
    _launch(product, out, (n_size, m_size * n_size), epilogue)


def multiply_split(
    product: Product, partials: Tensor, out: Tensor, epilogue: LinearEpilogue
) -> None:
    """`multiply` through the sums of the product's shares in float32 `partials` [M, shares, N]."""
    n_size = product.sizes[1]
    _launch(product, partials, (product.grid[1] * n_size, n_size), LinearEpilogue())
    sum_shares(partials, out, epilogue)


def _launch(
    product: Product, out: Tensor, strides: tuple[int, int], epilogue: LinearEpilogue
) -> None:
    _product_kernel[product.grid](
        *product.operands(), epilogue.bias, epilogue.mask, out, *strides, epilogue.scale,
        **epilogue.constants(), **product.constants(),
    )  # fmt: skip


def sum_shares(partials: Tensor, out: Tensor, epilogue: LinearEpilogue) -> None:
    """out [M, N] = float32 partials [M, shares, N], summed over shares in order, and epilogue."""
    m_size, shares, n_size = partials.shape
    _sum_kernel[(m_size, triton.cdiv(n_size, SUM_BLOCK))](
        partials, epilogue.bias, epilogue.mask, out, shares, n_size, epilogue.scale,
        **epilogue.constants(), BLOCK=SUM_BLOCK, num_warps=SUM_WARPS,
    )  # fmt: skip

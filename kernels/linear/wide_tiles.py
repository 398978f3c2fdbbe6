"""Products with tiles of 128 x 384: input gradients of linear layers with many inputs.

VGG-16's first linear layer has 25088 inputs. For 256 samples 196 tiles of 128 x 256 keep 132 SMs
busy for one and a half rounds, and 132 tiles of 128 x 384 for one: 77 us instead of 95 us (H200,
2026-11-21). A tile has two sums, of 256 and of 128 columns, over the same rows of dy.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ..language import device
from .gemm import TILE_GROUP, WIDE, LinearEpilogue, describable
from .gemm_tiles import store_tile, tile_start

TILE: Final = {"BLOCK_M": 128, "BLOCK_N": 256, "SIDE_N": 128, "BLOCK_K": 64}
NUM_STAGES: Final = 3
NUM_WARPS: Final = 8


@triton.jit
def _wide_kernel(
    a, b, side, m_size, n_size, k_size, mask_ptr, out_ptr, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SIDE_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TILE_GROUP: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """out = A B for A [M, K] and B [K, N]. `side` describes boxes of SIDE_N columns of B."""
    m, n = tile_start(m_size, n_size, BLOCK_M, BLOCK_N + SIDE_N, TILE_GROUP)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    side_acc = tl.zeros((BLOCK_M, SIDE_N), tl.float32)
    for k in tl.range(0, k_size, BLOCK_K, num_stages=NUM_STAGES):
        left = a.load([m, k])
        acc = tl.dot(left, b.load([k, n]), acc)
        side_acc = tl.dot(left, side.load([k, n + BLOCK_N]), side_acc)
    store_tile(
        acc, m, n, m_size, n_size, None, mask_ptr, out_ptr, n_size, None, 0, scale,
        False, "ieee", BLOCK_M, BLOCK_N,
    )  # fmt: skip
    store_tile(
        side_acc, m, n + BLOCK_N, m_size, n_size, None, mask_ptr, out_ptr, n_size, None, 0, scale,
        False, "ieee", BLOCK_M, SIDE_N,
    )  # fmt: skip


def suits_width(a: Tensor, b: Tensor) -> bool:
    """Whether `multiply_wide` suits a b: bfloat16 on Hopper, b [K, N] of more than WIDE columns."""
    has_engine = device.capability()[0] == 9 or device.interpreted()
    wide = a.dtype == torch.bfloat16 and b.shape[1] > WIDE
    return has_engine and wide and describable(a) and describable(b)


def multiply_wide(a: Tensor, b: Tensor, out: Tensor, epilogue: LinearEpilogue) -> None:
    """out [M, N] = a [M, K] b [K, N], bfloat16, with the scale and mask of the epilogue."""
    (m_size, k_size), n_size = a.shape, b.shape[1]
    columns = TILE["BLOCK_N"] + TILE["SIDE_N"]
    _wide_kernel[(triton.cdiv(m_size, TILE["BLOCK_M"]) * triton.cdiv(n_size, columns),)](
        TensorDescriptor.from_tensor(a, [TILE["BLOCK_M"], TILE["BLOCK_K"]]),
        TensorDescriptor.from_tensor(b, [TILE["BLOCK_K"], TILE["BLOCK_N"]]),
        TensorDescriptor.from_tensor(b, [TILE["BLOCK_K"], TILE["SIDE_N"]]),
        m_size, n_size, k_size, epilogue.mask, out, epilogue.scale,
        **TILE, TILE_GROUP=TILE_GROUP, NUM_STAGES=NUM_STAGES, num_warps=NUM_WARPS,
    )  # fmt: skip

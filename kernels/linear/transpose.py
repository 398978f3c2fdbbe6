"""Matrices turned, so that a weight gradient's products read along the samples.

Hopper's products read float32 operands, as TF32, along the terms of a sum alone. VGG-16's
25088 -> 4096 layer takes 276 us, 23 of them to turn both, and 707 without (H200, 2026-11-21).
"""

from collections.abc import Sequence
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language import device
from .gemm import DESCRIPTOR_ALIGNMENT, Product

Turned = Sequence[Tensor]

SIDE: Final = 64
NUM_WARPS: Final = 4


@triton.jit
def _transpose_kernel(matrix_ptr, turned_ptr, num_rows, num_columns, SIDE: tl.constexpr) -> None:
    offs_c = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    offs_r = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    inside = (offs_r < num_rows)[:, None] & (offs_c < num_columns)[None, :]
    offs = offs_r.to(tl.int64)[:, None] * num_columns + offs_c[None, :]
    tile = tl.load(matrix_ptr + offs, mask=inside, other=0.0)  # [SIDE, SIDE]
    offs = offs_c.to(tl.int64)[:, None] * num_rows + offs_r[None, :]
    tl.store(turned_ptr + offs, tile.T, mask=inside.T)


def turns(samples: int, dtype: torch.dtype, precision: str) -> bool:
    """Whether a weight gradient of so many samples takes turned operands: on Hopper, as TF32."""
    describable = samples > 0 and samples * dtype.itemsize % DESCRIPTOR_ALIGNMENT == 0
    on_hopper = device.capability()[0] == 9
    return on_hopper and describable and dtype == torch.float32 and precision == "tf32"


def turned_product(
    x: Tensor, dy: Tensor, turned: Turned, precision: str, *, narrow: bool = False
) -> Product:
    """dy^T x, by x [N, F] and dy [N, O] turned into the tensors given."""
    for matrix, place in zip((x, dy), turned, strict=True):
        _turn(matrix, place)
    return Product(turned[1], turned[0], False, False, precision, narrow=narrow, turned=True)


def _turn(matrix: Tensor, turned: Tensor) -> None:
    """turned [columns, rows] = matrix [rows, columns]."""
    rows, columns = matrix.shape
    grid = (triton.cdiv(columns, SIDE), triton.cdiv(rows, SIDE))
    _transpose_kernel[grid](matrix, turned, rows, columns, SIDE=SIDE, num_warps=NUM_WARPS)

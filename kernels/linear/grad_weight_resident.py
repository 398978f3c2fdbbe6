"""Weight gradients of a linear layer over few samples, and updates by them, for bfloat16.

A program keeps its rows of dy^T for all samples in shared memory and steps along x. The operands of
VGG-16's 25088 -> 4096 layer with 256 samples are read 32 times less often than with gemm.py's
tiles. Its gradient takes 154 us instead of 192 us, with an SGD update, which moves 1.64 GB, 448 us
instead of 676 us (H200, 2026-11-21). The bits are those of gemm.py: wgmma adds in the order of
samples. On Hopper grad_weight_tma_store.py computes gradients that are written.
"""

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ..language import device
from ..optim.math import Rule, apply_update
from .gemm import describable

MOST_SAMPLES: Final = 256  # rows of a box of the copy engine, at most
LEAST_DEPTH: Final = 16  # terms of a product of the tensor cores, at least
GRADIENT_TILE: Final = {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8}
SGD_TILE: Final = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4}
ADAMW_TILE: Final = {"BLOCK_M": 128, "BLOCK_N": 32, "num_warps": 8}  # states are prefetched too
NUM_STAGES: Final = 3


@triton.jit
def _resident_kernel(
    dy, x, param_ptr, states, control_ptr, m_size, n_size, span,
    UPDATE: tl.constexpr, ADAMW: tl.constexpr, NESTEROV: tl.constexpr, MAXIMIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows of dy^T x over `span` columns. Without UPDATE `param_ptr` is the gradient."""
    m = tl.program_id(0) * BLOCK_M
    first = tl.program_id(1) * span
    left = dy.load([0, m]).T  # [BLOCK_M, samples]
    offs_m = m + tl.arange(0, BLOCK_M)
    row_offs = offs_m.to(tl.int64)[:, None] * n_size
    for n in tl.range(first, tl.minimum(first + span, n_size), BLOCK_N, num_stages=NUM_STAGES):
        grad = tl.dot(left, x.load([0, n]))
        offs_n = n + tl.arange(0, BLOCK_N)
        inside = (offs_m < m_size)[:, None] & (offs_n < n_size)[None, :]
        offs = row_offs + offs_n[None, :]
        if UPDATE:
            apply_update(
                param_ptr, states, control_ptr, offs, inside, grad, ADAMW, NESTEROV, MAXIMIZE
            )
        else:
            tl.store(param_ptr + offs, grad, mask=inside)


def suits_residence(x: Tensor, dy: Tensor) -> bool:
    """Whether x and dy are bfloat16, and all samples fit one box of Hopper's copy engine."""
    has_engine = device.capability()[0] >= 9 or device.interpreted()
    has_engine = has_engine and device.holds_large_tiles()
    fits = 0 < x.shape[0] <= MOST_SAMPLES and x.dtype == torch.bfloat16
    return has_engine and fits and describable(x) and describable(dy)


def _launch(
    x: Tensor, dy: Tensor, operands: tuple[Any, ...], programs: int, tile: dict[str, int],
    **constants: bool,
) -> None:  # fmt: skip
    rows, columns = dy.shape[1], x.shape[1]
    depth = max(triton.next_power_of_2(x.shape[0]), LEAST_DEPTH)
    tiles_m = triton.cdiv(rows, tile["BLOCK_M"])
    shares = max(programs // tiles_m, 1)
    span = triton.cdiv(triton.cdiv(columns, shares), tile["BLOCK_N"]) * tile["BLOCK_N"]
    _resident_kernel[(tiles_m, triton.cdiv(columns, span))](
        TensorDescriptor.from_tensor(dy, [depth, tile["BLOCK_M"]]),
        TensorDescriptor.from_tensor(x, [depth, tile["BLOCK_N"]]),
        *operands, rows, columns, span, **constants, **tile, NUM_STAGES=NUM_STAGES,
    )  # fmt: skip


def resident_gradient(x: Tensor, dy: Tensor, grad: Tensor) -> None:
    """grad float32 [O, F] = dy^T x."""
    rule = {"ADAMW": False, "NESTEROV": False, "MAXIMIZE": False}
    operands = (grad, (), None)
    _launch(x, dy, operands, device.num_sms(), GRADIENT_TILE, UPDATE=False, **rule)


def resident_update(
    x: Tensor, dy: Tensor, param: Tensor, states: tuple[Tensor, ...], control: Tensor, rule: Rule
) -> None:
    """Update the float32 parameter [O, F] by the gradient dy^T x."""
    operands, programs = (param, states, control), 2 * device.num_sms()
    tile = ADAMW_TILE if rule.adamw else SGD_TILE
    _launch(x, dy, operands, programs, tile, UPDATE=True, **rule.constants())

"""Softmax and its logarithm over the channels of a map, with their gradients.

A gradient reads the output, or the input from which it computes the output again. Where the output
is rounded to TF32, the shares of a row do not add up to 1, and a gradient from it may be all error.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.rounding import stored, stored_reference

FUNCTIONS: Final = ("softmax", "log_softmax")
MOST_CHANNELS: Final = 16384  # channels of a row, at most: a program holds whole rows
TILE: Final = 2048  # elements of a program, where a row has fewer
WARP_ELEMENTS: Final = 512  # elements of a row for each warp


@triton.jit
def _rows(num_rows, channels, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Offsets and mask of this program's rows: [ROWS, BLOCK]."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK)[None, :]
    return rows[:, None] * channels + c, (rows < num_rows)[:, None] & (c < channels)


@triton.jit
def _normalized(x, LOG: tl.constexpr):
    """Softmax of rows, or its logarithm. Elements beyond the row are minus infinity."""
    below = x - tl.max(x, 1)[:, None]
    powers = tl.exp(below)
    total = tl.sum(powers, 1)[:, None]
    return below - tl.log(total) if LOG else powers / total


@triton.jit(do_not_specialize=["num_rows"])
def _softmax_kernel(
    x_ptr, y_ptr, num_rows, channels, LOG: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    offs, mask = _rows(num_rows, channels, ROWS, BLOCK)
    x = tl.load(x_ptr + offs, mask=mask, other=float("-inf")).to(tl.float32)
    y = _normalized(x, LOG)
    tl.store(y_ptr + offs, stored(y, y_ptr.dtype.element_ty, PRECISION), mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def _softmax_grad_kernel(
    map_ptr, dy_ptr, dx_ptr, num_rows, channels, BY_INPUT: tl.constexpr, LOG: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    offs, mask = _rows(num_rows, channels, ROWS, BLOCK)
    if BY_INPUT:
        x = tl.load(map_ptr + offs, mask=mask, other=float("-inf")).to(tl.float32)
        y = _normalized(x, LOG)
    else:
        y = tl.load(map_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    total = tl.sum(dy if LOG else y * dy, 1)[:, None]
    dx = dy - tl.exp(y) * total if LOG else y * (dy - total)
    tl.store(dx_ptr + offs, stored(dx, dx_ptr.dtype.element_ty, PRECISION), mask=mask)


def softmax(x: Tensor, y: Tensor, *, function: str, precision: str = "ieee") -> None:
    """y = "softmax" or "log_softmax" of each row of x [M, C], C <= MOST_CHANNELS. y may be x."""
    _launch(_softmax_kernel, x, y, function=function, precision=precision)


def softmax_grad(
    values: Tensor, dy: Tensor, dx: Tensor, *,
    function: str, precision: str = "ieee", by_input: bool = False,
) -> None:  # fmt: skip
    """The gradient dx [M, C] of `softmax` from dy. dx may be dy.

    `values` are the output, or with `by_input` the input. The bits are then those that a float32
    output gives.
    """
    settings = {"function": function, "precision": precision, "BY_INPUT": by_input}
    _launch(_softmax_grad_kernel, values, dy, dx, **settings)


def _launch(
    kernel: triton.JITFunction, *maps: Tensor, function: str, precision: str, **constants: bool
) -> None:
    num_rows, channels = maps[0].shape
    if maps[0].numel() == 0:
        return
    block = triton.next_power_of_2(channels)
    rows = max(TILE // block, 1)
    kernel[(triton.cdiv(num_rows, rows),)](
        *maps, num_rows, channels, LOG=function == "log_softmax", PRECISION=precision,
        ROWS=rows, BLOCK=block, **constants, num_warps=max(min(block // WARP_ELEMENTS, 16), 4),
    )  # fmt: skip


def softmax_reference(x: Tensor, y: Tensor, *, function: str, precision: str = "ieee") -> None:
    """Computes `softmax` in torch."""
    exact = getattr(torch, function)(x.double(), 1)
    y.copy_(stored_reference(exact.float(), y.dtype, precision))


def softmax_grad_reference(
    values: Tensor, dy: Tensor, dx: Tensor, *,
    function: str, precision: str = "ieee", by_input: bool = False,
) -> None:  # fmt: skip
    """Computes `softmax_grad` in float64."""
    if by_input:
        x, values = values, torch.empty_like(values, dtype=torch.float32)
        softmax_reference(x, values, function=function)
    y, wide = values.double(), dy.double()
    if function == "log_softmax":
        exact = wide - y.exp() * wide.sum(1, keepdim=True)
    else:
        exact = y * (wide - (y * wide).sum(1, keepdim=True))
    dx.copy_(stored_reference(exact.float(), dx.dtype, precision))

"""Hardshrink: values near zero become zero. Its gradient is a gate of the same kind."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.elementwise import launch, load_values, store_values
from ..language.rounding import stored_reference


@triton.jit(do_not_specialize=["numel"])
def _hardshrink_kernel(
    x_ptr, values_ptr, y_ptr, numel, bound, PRECISION: tl.constexpr, BLOCK: tl.constexpr
):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offs = tl.arange(0, BLOCK)
    mask, is_whole = offs < numel - start, start + BLOCK <= numel
    x = load_values(x_ptr + start + offs, mask, is_whole)
    values = load_values(values_ptr + start + offs, mask, is_whole)
    y = tl.where(tl.abs(x) <= bound, 0.0, values)
    store_values(y_ptr + start + offs, y, mask, is_whole, PRECISION)


def hardshrink(
    x: Tensor, values: Tensor, y: Tensor, *, bound: float, precision: str = "ieee"
) -> None:
    """y = `values` where |x| is above `bound`, else 0; all are contiguous.

    Forward the values are x itself, backward the gradient. y may be one of the operands.
    """
    launch(_hardshrink_kernel, x, values, y, bound=bound, PRECISION=precision)


def hardshrink_reference(
    x: Tensor, values: Tensor, y: Tensor, *, bound: float, precision: str = "ieee"
) -> None:
    exact = torch.where(x.abs() <= bound, 0.0, values.float())
    y.copy_(stored_reference(exact, y.dtype, precision))

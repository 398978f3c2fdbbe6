"""ReLU and its gradient, element by element over maps of any shape."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .elementwise import launch


@triton.jit
def _relu(x):
    return tl.where(x <= 0, 0.0, x)  # keeps NaN


@triton.jit
def _masked_gradient(y, dy):
    return tl.where(y <= 0, 0.0, dy)  # passes through where y is NaN


@triton.jit(do_not_specialize=["numel"])
def _relu_kernel(x_ptr, y_ptr, numel, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offs = tl.arange(0, BLOCK)
    x_ptr += start
    y_ptr += start
    if start + BLOCK <= numel:
        x = tl.load(x_ptr + offs)
        tl.store(y_ptr + offs, _relu(x).to(x.dtype))
    else:
        mask = offs < numel - start
        x = tl.load(x_ptr + offs, mask=mask, other=0.0)
        tl.store(y_ptr + offs, _relu(x).to(x.dtype), mask=mask)


@triton.jit(do_not_specialize=["numel"])
def _relu_grad_kernel(y_ptr, dy_ptr, dx_ptr, numel, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offs = tl.arange(0, BLOCK)
    y_ptr += start
    dy_ptr += start
    dx_ptr += start
    if start + BLOCK <= numel:
        dy = tl.load(dy_ptr + offs)
        dx = _masked_gradient(tl.load(y_ptr + offs), dy)
        tl.store(dx_ptr + offs, dx.to(dy.dtype))
    else:
        mask = offs < numel - start
        dy = tl.load(dy_ptr + offs, mask=mask, other=0.0)
        dx = _masked_gradient(tl.load(y_ptr + offs, mask=mask, other=0.0), dy)
        tl.store(dx_ptr + offs, dx.to(dy.dtype), mask=mask)


def relu(x: Tensor, y: Tensor) -> None:
    """y = max(x, 0), NaN kept; contiguous, same shape and dtype; y may be x."""
    launch(_relu_kernel, x, y)


def relu_grad(y: Tensor, dy: Tensor, dx: Tensor) -> None:
    """dx = dy where the output y is above zero (or NaN), else 0; dx may be dy."""
    launch(_relu_grad_kernel, y, dy, dx)


def relu_reference(x: Tensor, y: Tensor) -> None:
    """What `relu` computes."""
    y.copy_(torch.relu(x))


def relu_grad_reference(y: Tensor, dy: Tensor, dx: Tensor) -> None:
    """What `relu_grad` computes."""
    dx.copy_(dy.masked_fill(y <= 0, 0.0))

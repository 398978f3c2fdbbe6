"""Stochastic gradient descent over flat parameters, its settings read from the device."""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK: Final = 2048
NUM_WARPS: Final = 8


@triton.jit
def _sgd_kernel(
    param_ptr, grad_ptr, momentum_ptr, control_ptr, numel,
    HAS_MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, MAXIMIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < numel
    lr = tl.load(control_ptr)
    weight_decay = tl.load(control_ptr + 3)
    param = tl.load(param_ptr + offs, mask=mask, other=0.0)
    grad = tl.load(grad_ptr + offs, mask=mask, other=0.0) * tl.load(control_ptr + 5)
    if MAXIMIZE:
        grad = -grad
    grad += weight_decay * param
    if HAS_MOMENTUM:
        momentum = tl.load(control_ptr + 1)
        dampening = tl.load(control_ptr + 2)
        first = tl.load(control_ptr + 4) != 0.0
        buffer = tl.load(momentum_ptr + offs, mask=mask, other=0.0)
        buffer = tl.where(first, grad, buffer * momentum + (1.0 - dampening) * grad)
        tl.store(momentum_ptr + offs, buffer, mask=mask)
        if NESTEROV:
            grad += momentum * buffer
        else:
            grad = buffer
    tl.store(param_ptr + offs, param - lr * grad, mask=mask)


def sgd(
    param: Tensor,
    grad: Tensor,
    momentum_buffer: Tensor | None,
    control: Tensor,
    *,
    nesterov: bool,
    maximize: bool,
) -> None:
    """One step of torch.optim.SGD on float32 tensors of one layout, in place.

    `control` float32 [8] on the device: lr, momentum, dampening, weight_decay, first (not 0 on the
    first step, when the buffer becomes the gradient), grad_scale (a factor of the gradient), 0, 0.
    Without a momentum buffer, momentum, dampening and nesterov play no part.
    """
    numel = param.numel()
    if numel == 0:
        return
    grid = (triton.cdiv(numel, BLOCK),)
    _sgd_kernel[grid](
        param,
        grad,
        momentum_buffer,
        control,
        numel,
        HAS_MOMENTUM=momentum_buffer is not None,
        NESTEROV=nesterov,
        MAXIMIZE=maximize,
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
    )


def sgd_reference(
    param: Tensor,
    grad: Tensor,
    momentum_buffer: Tensor | None,
    control: Tensor,
    *,
    nesterov: bool,
    maximize: bool,
) -> None:
    """What `sgd` computes."""
    lr, momentum, dampening, weight_decay, first, grad_scale = control[:6].unbind()
    step = grad * grad_scale
    if maximize:
        step = -step
    step = step + weight_decay * param
    if momentum_buffer is not None:
        running = momentum_buffer * momentum + (1.0 - dampening) * step
        momentum_buffer.copy_(torch.where(first != 0.0, step, running))
        step = step + momentum * momentum_buffer if nesterov else momentum_buffer
    param.sub_(lr * step)

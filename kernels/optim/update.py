"""SGD and AdamW updates of one or many parameters a launch. Settings are read from the device."""

from collections.abc import Sequence
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.cost import costing, updates
from .math import Rule, adamw_rule, apply_update, sgd_rule

BLOCK: Final = 2048  # elements of a program
NUM_WARPS: Final = 8
TENSORS: Final = 8  # parameters that share a launch, at most
LARGEST: Final = 4  # times the elements of a parameter that one in its launch has, at most

Update = tuple[Tensor, Tensor, tuple[Tensor, ...]]  # a parameter, its gradient and its states


@triton.jit
def _update_kernel(
    param_ptrs, grad_ptrs, states, sizes, control_ptr,
    ADAMW: tl.constexpr, NESTEROV: tl.constexpr, MAXIMIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The second grid axis is the parameter's index in the tuples of pointers and sizes."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    for i in tl.static_range(len(param_ptrs)):
        if tl.program_id(1) == i:
            mask = offs < sizes[i]
            grad = tl.load(grad_ptrs[i] + offs, mask=mask, other=0.0)
            apply_update(
                param_ptrs[i], states[i], control_ptr, offs, mask, grad, ADAMW, NESTEROV, MAXIMIZE
            )


def _launch(updates: Sequence[Update], control: Tensor, rule: Rule) -> None:
    """One launch for all of these parameters."""
    params, grads, states = zip(*updates, strict=True)
    sizes = tuple(param.numel() for param in params)
    grid = (triton.cdiv(max(sizes), BLOCK), len(sizes))
    _update_kernel[grid](
        params, grads, states, sizes, control, **rule.constants(), BLOCK=BLOCK, num_warps=NUM_WARPS
    )


def _launch_all(updates: Sequence[Update], control: Tensor, rule: Rule) -> None:
    """Few launches, of parameters that have about as many elements: all have as many programs."""
    by_size = sorted(
        (each for each in updates if each[0].numel()), key=lambda each: -each[0].numel()
    )
    shared: list[Update] = []
    for update in by_size:
        most = LARGEST * max(BLOCK, update[0].numel())
        if shared and (len(shared) == TENSORS or shared[0][0].numel() > most):
            _launch(shared, control, rule)
            shared = []
        shared.append(update)
    if shared:
        _launch(shared, control, rule)


@costing(updates(0, 2))
def sgd(
    param: Tensor, grad: Tensor, momentum_buffer: Tensor | None, control: Tensor, *,
    nesterov: bool, maximize: bool,
) -> None:  # fmt: skip
    """One step of torch.optim.SGD in place, on float32 tensors of the same shape and strides.

    `control` float32 [8] on the device holds lr, momentum, dampening, weight_decay, first (not 0 on
    the first step, where the buffer becomes the gradient), grad_scale (a factor of the gradient), 0
    and a flag. Nothing changes where the flag is not 0. Without a momentum buffer the settings
    momentum, dampening and nesterov have no effect.
    """
    updates = [(param, grad, momentum_states(momentum_buffer))]
    _launch_all(updates, control, sgd_rule(nesterov, maximize))


@costing(updates(0, 2))
def sgd_many(
    params: Sequence[Tensor], grads: Sequence[Tensor], momentum_buffers: Sequence[Tensor | None],
    control: Tensor, *, nesterov: bool, maximize: bool,
) -> None:  # fmt: skip
    """`sgd` of many parameters, which share launches. Either all have a buffer or none has."""
    states = map(momentum_states, momentum_buffers)
    updates = list(zip(params, grads, states, strict=True))
    _launch_all(updates, control, sgd_rule(nesterov, maximize))


@costing(updates(0, 2, 3))
def adamw(
    param: Tensor, grad: Tensor, mean: Tensor, square: Tensor, control: Tensor, *, maximize: bool
) -> None:
    """One step of torch.optim.AdamW in place, on float32 tensors of the same shape and strides.

    `mean` and `square` are the running means of the gradient and of its square, 0 before the first
    step. `control` float32 [8] on the device holds the values of `adamw_control`. Nothing changes
    where control[7] is not 0.
    """
    _launch_all([(param, grad, (mean, square))], control, adamw_rule(maximize))


@costing(updates(0, 2, 3))
def adamw_many(
    params: Sequence[Tensor], grads: Sequence[Tensor], means: Sequence[Tensor],
    squares: Sequence[Tensor], control: Tensor, *, maximize: bool,
) -> None:  # fmt: skip
    """`adamw` of many parameters, which share launches."""
    states = zip(means, squares, strict=True)
    updates = list(zip(params, grads, states, strict=True))
    _launch_all(updates, control, adamw_rule(maximize))


def adamw_control(
    *, step: int, lr: float, betas: tuple[float, float], eps: float, weight_decay: float,
    grad_scale: float = 1.0,
) -> tuple[float, ...]:  # fmt: skip
    """The 8 values of `control` for AdamW's step number `step`, counted from 1.

    They are the factor that decays parameters, the shares of the new gradient and of its square in
    their running means, the step size, the factor of the root of the mean square, eps, grad_scale,
    and the flag 0. Computed in float64, each is rounded to float32 once.
    """
    corrections = [1.0 - beta**step for beta in betas]
    return (
        1.0 - lr * weight_decay, 1.0 - betas[0], 1.0 - betas[1], lr / corrections[0],
        corrections[1] ** -0.5, eps, grad_scale, 0.0,
    )  # fmt: skip


def momentum_states(momentum_buffer: Tensor | None) -> tuple[Tensor, ...]:
    """The states of SGD: the momentum buffer, if there is one."""
    return () if momentum_buffer is None else (momentum_buffer,)


def _store(value: Tensor, target: Tensor, control: Tensor) -> None:
    """target = value, unless the flag in `control` is set."""
    target.copy_(torch.where(control[7] == 0.0, value, target))


def sgd_reference(
    param: Tensor, grad: Tensor, momentum_buffer: Tensor | None, control: Tensor, *,
    nesterov: bool, maximize: bool,
) -> None:  # fmt: skip
    """Computes `sgd` in torch."""
    lr, momentum, dampening, weight_decay, first, grad_scale = control[:6].unbind()
    step = grad * grad_scale
    if maximize:
        step = -step
    step = step + weight_decay * param
    if momentum_buffer is not None:
        running = momentum_buffer * momentum + (1.0 - dampening) * step
        running = torch.where(first != 0.0, step, running)
        step = step + momentum * running if nesterov else running
        _store(running, momentum_buffer, control)
    _store(param - lr * step, param, control)


def sgd_many_reference(
    params: Sequence[Tensor], grads: Sequence[Tensor], momentum_buffers: Sequence[Tensor | None],
    control: Tensor, *, nesterov: bool, maximize: bool,
) -> None:  # fmt: skip
    """Computes `sgd_many` in torch."""
    for operands in zip(params, grads, momentum_buffers, strict=True):
        sgd_reference(*operands, control, nesterov=nesterov, maximize=maximize)


def adamw_reference(
    param: Tensor, grad: Tensor, mean: Tensor, square: Tensor, control: Tensor, *, maximize: bool
) -> None:
    """Computes `adamw` in torch."""
    decay, mean_share, square_share, rate, root_factor, eps, grad_scale = control[:7].unbind()
    step = grad * (-grad_scale if maximize else grad_scale)
    new_mean = mean + (step - mean) * mean_share
    new_square = square + (step * step - square) * square_share
    less = rate * new_mean / (new_square.sqrt() * root_factor + eps)
    _store(param * decay - less, param, control)
    _store(new_mean, mean, control)
    _store(new_square, square, control)


def adamw_many_reference(
    params: Sequence[Tensor], grads: Sequence[Tensor], means: Sequence[Tensor],
    squares: Sequence[Tensor], control: Tensor, *, maximize: bool,
) -> None:  # fmt: skip
    """Computes `adamw_many` in torch."""
    for operands in zip(params, grads, means, squares, strict=True):
        adamw_reference(*operands, control, maximize=maximize)

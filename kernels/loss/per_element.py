"""Losses by element: squared errors, and binary cross-entropy of logits.

Elements may have weights by channel, the last dimension. Binary cross-entropy may also weigh
targets of 1. Partial sums are pairs for `loss_total`: a sum of losses, and the number of its
elements.
"""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from ..language.rounding import stored, stored_reference

FUNCTIONS: Final = ("mse", "bce_with_logits")
BLOCK: Final = 2048  # elements of a step
STEPS: Final = 8  # steps of a partial sum
NUM_WARPS: Final = 4


@triton.jit
def _log1p(x):
    """log(1 + x) for x in [0, 1], with the rounding error of 1 + x divided out (Kahan)."""
    total = 1.0 + x
    return tl.where(total == 1.0, x, tl.log(total) * (x / (total - 1.0)))


@triton.jit
def _softplus(x):
    return tl.maximum(x, 0.0) + _log1p(tl.exp(-tl.abs(x)))


@triton.jit
def _sigmoid(x):
    less = tl.exp(-tl.abs(x))
    return tl.where(x < 0, less, 1.0) / (1.0 + less)


@triton.jit
def _loss(x, target, positive, FUNCTION: tl.constexpr):
    if FUNCTION == "mse":
        loss = (x - target) * (x - target)
    else:
        loss = (1.0 - target) * _softplus(x) + positive * target * _softplus(-x)
    return loss


@triton.jit
def _slope(x, target, positive, FUNCTION: tl.constexpr):
    if FUNCTION == "mse":
        slope = 2.0 * (x - target)
    else:
        slope = (1.0 - target) * _sigmoid(x) - positive * target * _sigmoid(-x)
    return slope


@triton.jit
def _of_channels(values_ptr, offs, count, mask, GIVEN: tl.constexpr):
    """The values of the elements' channels, or the one value of all; 1 without GIVEN."""
    values = 1.0
    if GIVEN:
        values = tl.load(values_ptr + offs % count, mask=mask, other=0.0)
    return values


@triton.jit
def _load(ptrs, mask, is_whole):
    """The values at the pointers in float32. A whole block is loaded 16 bytes at a time."""
    values = tl.load(ptrs) if is_whole else tl.load(ptrs, mask=mask, other=0.0)
    return values.to(tl.float32)


@triton.jit(do_not_specialize=["splits"])
def _sums_kernel(
    x_ptr, target_ptr, weight_ptr, positive_ptr, partials_ptr, size, weights, positives, splits,
    FUNCTION: tl.constexpr, WEIGHTED: tl.constexpr, POSITIVE: tl.constexpr,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    sample, split = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    x_ptr += sample * size
    target_ptr += sample * size
    first = split * (STEPS * BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for step in range(STEPS):
        offs = first + step * BLOCK + tl.arange(0, BLOCK)
        mask = offs < size
        x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        target = tl.load(target_ptr + offs, mask=mask, other=0.0)
        positive = _of_channels(positive_ptr, offs, positives, mask, POSITIVE)
        losses = _loss(x, target, positive, FUNCTION)
        losses *= _of_channels(weight_ptr, offs, weights, mask, WEIGHTED)
        total += tl.where(mask, losses, 0.0)
    partials_ptr += 2 * (sample * splits + split)
    tl.store(partials_ptr, tl.sum(total, 0))
    counted = tl.minimum(size - first, STEPS * BLOCK)
    tl.store(partials_ptr + 1, counted.to(tl.float32))


@triton.jit(do_not_specialize=["numel"])
def _grad_kernel(
    x_ptr, target_ptr, weight_ptr, positive_ptr, total_ptr, control_ptr, dx_ptr,
    numel, weights, positives,
    FUNCTION: tl.constexpr, WEIGHTED: tl.constexpr, POSITIVE: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offs = start + tl.arange(0, BLOCK)
    mask, is_whole = offs < numel, start + BLOCK <= numel
    x = _load(x_ptr + offs, mask, is_whole)
    target = _load(target_ptr + offs, mask, is_whole)
    positive = _of_channels(positive_ptr, offs, positives, mask, POSITIVE)
    slope = _slope(x, target, positive, FUNCTION)
    slope *= _of_channels(weight_ptr, offs, weights, mask, WEIGHTED)
    dx = slope * (tl.load(control_ptr) / tl.load(total_ptr + 1))
    dx = stored(dx, dx_ptr.dtype.element_ty, PRECISION)
    if is_whole:
        tl.store(dx_ptr + offs, dx)
    else:
        tl.store(dx_ptr + offs, dx, mask=mask)


def element_loss(
    x: Tensor, target: Tensor, weight: Tensor | None, pos_weight: Tensor | None,
    partials: Tensor, *, function: str,
) -> None:  # fmt: skip
    """Sums of losses and their counts: float32 partials [N, `element_splits`(size of a sample), 2].

    `function` is "mse" or "bce_with_logits". `target` is float32 of the shape of x [N, ..., C], the
    weights are float32 [C] or [1]. `pos_weight` weighs targets of 1 in binary cross-entropy.
    """
    samples, size = x.shape[0], x[:1].numel()
    if x.numel() == 0:
        return
    splits = element_splits(size)
    _sums_kernel[(samples, splits)](
        x, target, weight, pos_weight, partials, size, _count(weight), _count(pos_weight), splits,
        FUNCTION=function, WEIGHTED=weight is not None, POSITIVE=pos_weight is not None,
        STEPS=STEPS, BLOCK=BLOCK, num_warps=NUM_WARPS,
    )  # fmt: skip


def element_loss_grad(
    x: Tensor, target: Tensor, weight: Tensor | None, pos_weight: Tensor | None, total: Tensor,
    control: Tensor, dx: Tensor, *, function: str, precision: str = "ieee",
) -> None:  # fmt: skip
    """The gradient dx of `element_loss`, times control[0] / total[1].

    `control` float32 [1] is the gradient of the loss, or a loss scale. `total` is that of
    `loss_total`. dx is rounded as products of `precision` read it.
    """
    numel = x.numel()
    if numel == 0:
        return
    _grad_kernel[(triton.cdiv(numel, BLOCK),)](
        x, target, weight, pos_weight, total, control, dx,
        numel, _count(weight), _count(pos_weight),
        FUNCTION=function, WEIGHTED=weight is not None, POSITIVE=pos_weight is not None,
        PRECISION=precision, BLOCK=BLOCK, num_warps=NUM_WARPS,
    )  # fmt: skip


def _count(values: Tensor | None) -> int:
    return 1 if values is None else values.numel()


def element_splits(size: int) -> int:
    """Number of partial sums of a sample of `size` elements."""
    return triton.cdiv(size, STEPS * BLOCK)


def _losses_reference(x: Tensor, target: Tensor, pos_weight: Tensor | None, name: str) -> Tensor:
    if name == "mse":
        return (x - target).square()
    positive = 1.0 if pos_weight is None else pos_weight.double()
    negative = (1 - target) * functional.softplus(x)
    return negative + positive * target * functional.softplus(-x)


def _slopes_reference(x: Tensor, target: Tensor, pos_weight: Tensor | None, name: str) -> Tensor:
    if name == "mse":
        return 2 * (x - target)
    positive = 1.0 if pos_weight is None else pos_weight.double()
    return (1 - target) * x.sigmoid() - positive * target * (-x).sigmoid()


def element_loss_reference(
    x: Tensor, target: Tensor, weight: Tensor | None, pos_weight: Tensor | None,
    partials: Tensor, *, function: str,
) -> None:  # fmt: skip
    """Computes `element_loss` in torch."""
    losses = _losses_reference(x.double(), target.double(), pos_weight, function)
    losses = losses if weight is None else losses * weight.double()
    for split, share in enumerate(losses.flatten(1).split(STEPS * BLOCK, 1)):
        partials[:, split, 0], partials[:, split, 1] = share.sum(1), share.shape[1]


def element_loss_grad_reference(
    x: Tensor, target: Tensor, weight: Tensor | None, pos_weight: Tensor | None, total: Tensor,
    control: Tensor, dx: Tensor, *, function: str, precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `element_loss_grad` in torch."""
    slopes = _slopes_reference(x.double(), target.double(), pos_weight, function)
    slopes = slopes if weight is None else slopes * weight.double()
    exact = slopes * (control.double() / total[1].double())
    dx.copy_(stored_reference(exact.float(), dx.dtype, precision))

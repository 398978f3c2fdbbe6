"""Cross-entropy of logits [N, K] against class indices: per sample, in total, and its gradient.

A target that is neither a class nor `ignore_index` makes its sample's loss and gradient NaN.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

ROW_BLOCK: Final = 4096
SUM_BLOCK: Final = 1024
NUM_WARPS: Final = 4


@triton.jit(do_not_specialize=["ignore_index"])
def _rows_kernel(
    logits_ptr, target_ptr, losses_ptr, lse_ptr, num_classes, ignore_index, BLOCK: tl.constexpr
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    logits_ptr += n * num_classes
    offs = tl.arange(0, BLOCK)
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, num_classes, BLOCK):
        mask = offs < num_classes - start
        x = tl.load(logits_ptr + start + offs, mask=mask, other=float("-inf")).to(tl.float32)
        largest = tl.maximum(largest, x)
    top = tl.max(largest, 0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, num_classes, BLOCK):
        mask = offs < num_classes - start
        x = tl.load(logits_ptr + start + offs, mask=mask, other=float("-inf")).to(tl.float32)
        total += tl.where(mask, tl.exp(x - top), 0.0)
    log_total = tl.log(tl.sum(total, 0))
    target = tl.load(target_ptr + n)
    is_class = (target >= 0) & (target < num_classes)
    chosen = tl.load(logits_ptr + target, mask=is_class, other=0.0).to(tl.float32)
    loss = tl.where(is_class, log_total + (top - chosen), float("nan"))
    tl.store(losses_ptr + n, tl.where(target == ignore_index, 0.0, loss))
    tl.store(lse_ptr + n, top + log_total)


@triton.jit(do_not_specialize=["num_samples", "ignore_index"])
def _total_kernel(
    losses_ptr, target_ptr, total_ptr, num_samples, ignore_index,
    MEAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: each lane sums every BLOCK-th loss, in index order."""
    offs = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    counted = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, num_samples, BLOCK):
        mask = offs < num_samples - start
        total += tl.load(losses_ptr + start + offs, mask=mask, other=0.0)
        target = tl.load(target_ptr + start + offs, mask=mask, other=0)
        counted += (mask & (target != ignore_index)).to(tl.int32)
    loss = tl.sum(total, 0)
    divisor = 1.0
    if MEAN:
        divisor = tl.sum(counted, 0).to(tl.float32)
    tl.store(total_ptr, loss / divisor)
    tl.store(total_ptr + 1, divisor)


@triton.jit(do_not_specialize=["ignore_index"])
def _grad_kernel(
    logits_ptr, target_ptr, lse_ptr, total_ptr, control_ptr, dlogits_ptr, num_classes, ignore_index,
    BLOCK: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * BLOCK
    offs = tl.arange(0, BLOCK)
    mask = offs < num_classes - start
    row = n * num_classes + start
    x = tl.load(logits_ptr + row + offs, mask=mask, other=0.0).to(tl.float32)
    target = tl.load(target_ptr + n)
    is_class = (target >= 0) & (target < num_classes)
    gradient = tl.exp(x - tl.load(lse_ptr + n)) - (start + offs == target).to(tl.float32)
    gradient *= tl.load(control_ptr) / tl.load(total_ptr + 1)
    gradient = tl.where(is_class, gradient, float("nan"))
    gradient = tl.where(target == ignore_index, 0.0, gradient)
    tl.store(dlogits_ptr + row + offs, gradient.to(dlogits_ptr.dtype.element_ty), mask=mask)


def cross_entropy_rows(
    logits: Tensor, target: Tensor, losses: Tensor, lse: Tensor, *, ignore_index: int
) -> None:
    """losses[n] = lse[n] - logits[n, target[n]], or 0 where ignored; lse[n] = log sum exp of a row.

    `target` int64 [N], `losses` and `lse` float32 [N].
    """
    samples, classes = logits.shape
    if samples == 0:
        return
    _rows_kernel[(samples,)](
        logits, target, losses, lse, classes, ignore_index,
        BLOCK=_row_block(classes), num_warps=NUM_WARPS,
    )  # fmt: skip


def cross_entropy_total(
    losses: Tensor, target: Tensor, total: Tensor, *, reduction: str, ignore_index: int
) -> None:
    """total = (loss, divisor) float32 [2]: the "sum" of the losses, or their "mean".

    The mean divides by the number of targets that are not ignored; with none of them it is NaN.
    """
    _total_kernel[(1,)](
        losses, target, total, losses.shape[0], ignore_index,
        MEAN=reduction == "mean", BLOCK=SUM_BLOCK, num_warps=NUM_WARPS,
    )  # fmt: skip


def cross_entropy_grad(
    logits: Tensor, target: Tensor, lse: Tensor, total: Tensor, control: Tensor, dlogits: Tensor, *,
    reduction: str, ignore_index: int,
) -> None:  # fmt: skip
    """dlogits = (softmax - one hot) * control[0] / total[1]; rows that are ignored get 0.

    `control` float32 [1] on the device: the gradient of the loss, or a loss scale. With "sum" the
    divisor that `cross_entropy_total` left in total[1] is 1.
    """
    samples, classes = logits.shape
    if samples == 0:
        return
    block = _row_block(classes)
    _grad_kernel[(samples, triton.cdiv(classes, block))](
        logits, target, lse, total, control, dlogits, classes, ignore_index,
        BLOCK=block, num_warps=NUM_WARPS,
    )  # fmt: skip


def _row_block(classes: int) -> int:
    return min(triton.next_power_of_2(classes), ROW_BLOCK)


def _is_class(target: Tensor, classes: int) -> Tensor:
    return (target >= 0) & (target < classes)


def cross_entropy_rows_reference(
    logits: Tensor, target: Tensor, losses: Tensor, lse: Tensor, *, ignore_index: int
) -> None:
    """What `cross_entropy_rows` computes."""
    wide = logits.float()
    classes = wide.shape[1]
    chosen = wide.log_softmax(1).gather(1, target.clamp(0, classes - 1)[:, None])[:, 0]
    known = torch.where(_is_class(target, classes), -chosen, torch.nan)
    losses.copy_(known.masked_fill(target == ignore_index, 0.0))
    lse.copy_(wide.logsumexp(1))


def cross_entropy_total_reference(
    losses: Tensor, target: Tensor, total: Tensor, *, reduction: str, ignore_index: int
) -> None:
    """What `cross_entropy_total` computes."""
    counted = (target != ignore_index).sum().float()
    total[1] = counted if reduction == "mean" else 1.0
    total[0] = losses.sum() / total[1]


def cross_entropy_grad_reference(
    logits: Tensor, target: Tensor, lse: Tensor, total: Tensor, control: Tensor, dlogits: Tensor, *,
    reduction: str, ignore_index: int,
) -> None:  # fmt: skip
    """What `cross_entropy_grad` computes."""
    wide = logits.float()
    gradient = (wide - lse[:, None]).exp()
    classes = torch.arange(wide.shape[1], device=wide.device)
    gradient -= (classes == target[:, None]).float()
    gradient *= control / total[1]
    gradient.masked_fill_(~_is_class(target, wide.shape[1])[:, None], torch.nan)
    dlogits.copy_(gradient.masked_fill_((target == ignore_index)[:, None], 0.0))

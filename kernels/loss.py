"""Cross-entropy of logits [N, K] against class indices: per sample, in total, and its gradient.

A target that is neither a class nor `ignore_index` makes its sample's loss and gradient NaN.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS_TILE: Final = 2048  # logits of a program of one warp, whose maxima need no shared memory
GRAD_TILE: Final = 1024
GRAD_WARPS: Final = 2
MOST_ROWS: Final = 64
LOG2_E: Final = tl.constexpr(1.4426950408889634)
ALIGNMENT: Final = 16  # elements, of the widest load
SUM_BLOCK: Final = 1024
NUM_WARPS: Final = 4


@triton.jit
def _logits(row_ptrs, start, offs, num_classes, known):
    """Logits [ROWS, BLOCK] from class `start` on as float32, -inf where there are none."""
    mask = (offs < num_classes - start)[None, :] & known[:, None]
    ptrs = row_ptrs[:, None] + (start + offs)[None, :]
    return tl.load(ptrs, mask=mask, other=float("-inf")).to(tl.float32)


@triton.jit
def _exponentials(x, top):
    """exp(x - top) of rows [ROWS, BLOCK], as a power of two of one multiply-add."""
    shift = tl.where(top == float("-inf"), 0.0, top * -LOG2_E)
    return tl.exp2(tl.fma(x, LOG2_E, shift[:, None]))


@triton.jit
def _top_and_total(
    row_ptrs, num_classes, known, ROWS: tl.constexpr, BLOCK: tl.constexpr, ONE: tl.constexpr
):
    """Of each row its largest logit, and the sum of the exponentials of what is left of the others.

    `ONE`: a block holds a whole row.
    """
    offs = tl.arange(0, BLOCK)
    if ONE:
        x = _logits(row_ptrs, 0, offs, num_classes, known)
        top = tl.max(x, 1)
        total = _exponentials(x, top)
    else:
        largest = tl.full((ROWS, BLOCK), float("-inf"), tl.float32)
        for start in range(0, num_classes, BLOCK):
            largest = tl.maximum(largest, _logits(row_ptrs, start, offs, num_classes, known))
        top = tl.max(largest, 1)
        total = tl.zeros((ROWS, BLOCK), tl.float32)
        for start in range(0, num_classes, BLOCK):
            total += _exponentials(_logits(row_ptrs, start, offs, num_classes, known), top)
    return top, tl.sum(total, 1)


@triton.jit(do_not_specialize=["num_samples", "ignore_index"])
def _rows_kernel(
    logits_ptr, target_ptr, losses_ptr, lse_ptr, num_samples, num_classes, ignore_index,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, ONE: tl.constexpr, DIVISOR: tl.constexpr,
):  # fmt: skip
    """DIVISOR divides num_classes, which tells the compiler how rows are aligned."""
    num_classes = num_classes // DIVISOR * DIVISOR
    n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    known = n < num_samples
    row_ptrs = logits_ptr + n * num_classes
    top, total = _top_and_total(row_ptrs, num_classes, known, ROWS, BLOCK, ONE)
    log_total = tl.log(total)
    target = tl.load(target_ptr + n, mask=known, other=0)
    is_class = (target >= 0) & (target < num_classes)
    chosen = tl.load(row_ptrs + target, mask=known & is_class, other=0.0).to(tl.float32)
    loss = tl.where(is_class, log_total + (top - chosen), float("nan"))
    tl.store(losses_ptr + n, tl.where(target == ignore_index, 0.0, loss), mask=known)
    tl.store(lse_ptr + n, top + log_total, mask=known)


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


@triton.jit(do_not_specialize=["num_samples", "ignore_index"])
def _grad_kernel(
    logits_ptr, target_ptr, lse_ptr, total_ptr, control_ptr, dlogits_ptr,
    num_samples, num_classes, ignore_index,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, DIVISOR: tl.constexpr,
):  # fmt: skip
    """DIVISOR divides num_classes, which tells the compiler how rows are aligned."""
    num_classes = num_classes // DIVISOR * DIVISOR
    n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    known = n < num_samples
    classes = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = known[:, None] & (classes < num_classes)[None, :]
    offs = (n * num_classes)[:, None] + classes[None, :]
    x = tl.load(logits_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    target = tl.load(target_ptr + n, mask=known, other=0)
    lse = tl.load(lse_ptr + n, mask=known, other=0.0)
    is_class = (target >= 0) & (target < num_classes)
    gradient = tl.exp(x - lse[:, None]) - (classes[None, :] == target[:, None]).to(tl.float32)
    gradient *= tl.load(control_ptr) / tl.load(total_ptr + 1)
    gradient = tl.where(is_class[:, None], gradient, float("nan"))
    gradient = tl.where((target == ignore_index)[:, None], 0.0, gradient)
    tl.store(dlogits_ptr + offs, gradient.to(dlogits_ptr.dtype.element_ty), mask=mask)


def cross_entropy_rows(
    logits: Tensor, target: Tensor, losses: Tensor, lse: Tensor, *, ignore_index: int
) -> None:
    """losses[n] = lse[n] - logits[n, target[n]], or 0 where ignored; lse[n] = log sum exp of a row.

    `target` int64 [N], `losses` and `lse` float32 [N].
    """
    samples, classes = logits.shape
    if samples == 0:
        return
    tile = _tile(classes, ROWS_TILE)
    _rows_kernel[(triton.cdiv(samples, tile["ROWS"]),)](
        logits, target, losses, lse, samples, classes, ignore_index,
        **tile, ONE=classes <= tile["BLOCK"], num_warps=1,
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
    tile = _tile(classes, GRAD_TILE)
    _grad_kernel[(triton.cdiv(samples, tile["ROWS"]), triton.cdiv(classes, tile["BLOCK"]))](
        logits, target, lse, total, control, dlogits, samples, classes, ignore_index,
        **tile, num_warps=GRAD_WARPS,
    )  # fmt: skip


def _tile(classes: int, tile: int) -> dict[str, int]:
    """Rows and classes of a program, and the largest power of two that divides the classes."""
    block = min(triton.next_power_of_2(classes), tile)
    divisor = min(classes & -classes, ALIGNMENT)
    return {"ROWS": min(tile // block, MOST_ROWS), "BLOCK": block, "DIVISOR": divisor}


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

"""Cross-entropy of logits [N, K] against class indices: per sample, in total, and its gradient.

A target that is neither a class nor `ignore_index` makes its sample's loss and gradient NaN.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS_TILE: Final = 2048  # logits of a program of one warp, whose maxima need no shared memory
LANES: Final = 128  # threads that share a row of more logits
LOADS: Final = 16  # logits of a thread that are in flight together
GRAD_ROWS_TILE: Final = 2048
GRAD_TILE: Final = 1024
GRAD_WARPS: Final = 4
MOST_ROWS: Final = 64
LOG2_E: Final = tl.constexpr(1.4426950408889634)
ALIGNMENT: Final = 16  # elements, of the widest load
SUM_BLOCK: Final = 4096
SUM_WARPS: Final = 16


@triton.jit
def _shift(top):
    """What takes exp(x - top) to a power of two of one multiply-add; 0 where top is -inf."""
    return tl.where(top == float("-inf"), 0.0, top * -LOG2_E)


@triton.jit
def _exponentials(x, shift):
    return tl.exp2(tl.fma(x, LOG2_E, shift))


@triton.jit
def _with_logits(top, total, x):
    """Largest logits [LANES] and sums of exponentials of what others lack, [LOADS, LANES] more."""
    higher = tl.maximum(top, tl.max(x, 0))
    shift = _shift(higher)
    total = total * _exponentials(top, shift) + tl.sum(_exponentials(x, shift[None, :]), 0)
    return higher, total


@triton.jit
def _top_and_total_of_row(row_ptr, num_classes, LOADS: tl.constexpr, BLOCK: tl.constexpr):
    """Of a row, in one reading: its largest logit, and the sum of the exponentials of the others'.

    A lane takes every BLOCK-th class, wherever the row begins in memory.
    """
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    offs = tl.arange(0, LOADS)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]  # [LOADS, BLOCK]
    for _ in range(num_classes // (LOADS * BLOCK)):
        top, total = _with_logits(top, total, tl.load(row_ptr + offs).to(tl.float32))
        row_ptr += LOADS * BLOCK
    mask = offs < num_classes % (LOADS * BLOCK)
    rest = tl.load(row_ptr + offs, mask=mask, other=float("-inf"))
    top, total = _with_logits(top, total, rest.to(tl.float32))
    highest = tl.max(top, 0)
    return highest, tl.sum(total * _exponentials(top, _shift(highest)), 0)


@triton.jit
def _top_and_total_of_rows(row_ptrs, num_classes, known, BLOCK: tl.constexpr):
    """The same of rows that a block holds whole: [ROWS]."""
    offs = tl.arange(0, BLOCK)
    mask = (offs < num_classes)[None, :] & known[:, None]
    x = tl.load(row_ptrs[:, None] + offs[None, :], mask=mask, other=float("-inf")).to(tl.float32)
    top = tl.max(x, 1)
    return top, tl.sum(_exponentials(x, _shift(top)[:, None]), 1)


@triton.jit
def _store_rows(
    losses_ptr, lse_ptr, n, known, target_ptr, row_ptrs, top, total, num_classes, ignore_index
):
    log_total = tl.log(total)
    target = tl.load(target_ptr + n, mask=known, other=0)
    is_class = (target >= 0) & (target < num_classes)
    chosen = tl.load(row_ptrs + target, mask=known & is_class, other=0.0).to(tl.float32)
    loss = tl.where(is_class, log_total + (top - chosen), float("nan"))
    tl.store(losses_ptr + n, tl.where(target == ignore_index, 0.0, loss), mask=known)
    tl.store(lse_ptr + n, top + log_total, mask=known)


@triton.jit(do_not_specialize=["ignore_index"])
def _row_kernel(
    logits_ptr, target_ptr, losses_ptr, lse_ptr, num_classes, ignore_index,
    LOADS: tl.constexpr, BLOCK: tl.constexpr, DIVISOR: tl.constexpr,
):  # fmt: skip
    """A row a program. DIVISOR divides num_classes, which tells the compiler how rows lie."""
    num_classes = num_classes // DIVISOR * DIVISOR
    n = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + n * num_classes
    top, total = _top_and_total_of_row(row_ptr, num_classes, LOADS, BLOCK)
    _store_rows(
        losses_ptr, lse_ptr, n, True, target_ptr, row_ptr, top, total, num_classes, ignore_index
    )


@triton.jit(do_not_specialize=["num_samples", "ignore_index"])
def _rows_kernel(
    logits_ptr, target_ptr, losses_ptr, lse_ptr, num_samples, num_classes, ignore_index,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, DIVISOR: tl.constexpr,
):  # fmt: skip
    """ROWS rows a program, each in one block."""
    num_classes = num_classes // DIVISOR * DIVISOR
    n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    known = n < num_samples
    row_ptrs = logits_ptr + n * num_classes
    top, total = _top_and_total_of_rows(row_ptrs, num_classes, known, BLOCK)
    _store_rows(
        losses_ptr, lse_ptr, n, known, target_ptr, row_ptrs, top, total, num_classes, ignore_index
    )


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


@triton.jit
def _load_rows(target_ptr, lse_ptr, n, known, num_classes, ignore_index):
    """Of rows n: their class, -1 if it is none, lse, and whether the target is ignored."""
    target = tl.load(target_ptr + n, mask=known, other=0)
    lse = tl.load(lse_ptr + n, mask=known, other=0.0)
    is_class = (target >= 0) & (target < num_classes)
    return tl.where(is_class, target, -1).to(tl.int32), lse, target == ignore_index


@triton.jit
def _gradient(x, classes, target, lse, ignored, scale):
    """scale * (softmax - one hot): 0 where the target is ignored, NaN where it is no class."""
    hot = tl.where(classes == target, -scale, 0.0)
    fill = tl.where(ignored, 0.0, float("nan"))
    return tl.where((target >= 0) & (ignored == 0), tl.fma(tl.exp(x - lse), scale, hot), fill)


@triton.jit(do_not_specialize=["num_samples", "ignore_index"])
def _grad_rows_kernel(
    logits_ptr, target_ptr, lse_ptr, total_ptr, control_ptr, dlogits_ptr,
    num_samples, num_classes, ignore_index,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, DIVISOR: tl.constexpr,
):  # fmt: skip
    """ROWS rows a program, each in one block."""
    num_classes = num_classes // DIVISOR * DIVISOR
    n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    known = n < num_samples
    classes = tl.arange(0, BLOCK)[None, :]
    mask = known[:, None] & (classes < num_classes)
    offs = (n * num_classes)[:, None] + classes
    x = tl.load(logits_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    target, lse, ignored = _load_rows(target_ptr, lse_ptr, n, known, num_classes, ignore_index)
    scale = tl.load(control_ptr) / tl.load(total_ptr + 1)
    dx = _gradient(x, classes, target[:, None], lse[:, None], ignored[:, None], scale)
    tl.store(dlogits_ptr + offs, dx.to(dlogits_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_samples", "num_classes", "ignore_index"])
def _grad_kernel(
    logits_ptr, target_ptr, lse_ptr, total_ptr, control_ptr, dlogits_ptr,
    num_samples, num_classes, ignore_index, BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK logits a program, of one row or of two, wherever in memory rows begin."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    n = start // num_classes
    first = (start - n * num_classes).to(tl.int32)
    offs = tl.arange(0, BLOCK)
    logits_ptr += start
    dlogits_ptr += start
    scale = tl.load(control_ptr) / tl.load(total_ptr + 1)
    kind = dlogits_ptr.dtype.element_ty
    if first + BLOCK <= num_classes:
        x = tl.load(logits_ptr + offs).to(tl.float32)
        row = _load_rows(target_ptr, lse_ptr, n, True, num_classes, ignore_index)
        dx = _gradient(x, first + offs, row[0], row[1], row[2], scale)
        tl.store(dlogits_ptr + offs, dx.to(kind))
    else:
        for _ in range(2):
            mask = (first + offs >= 0) & (first + offs < num_classes) & (n < num_samples)
            x = tl.load(logits_ptr + offs, mask=mask, other=0.0).to(tl.float32)
            row = _load_rows(target_ptr, lse_ptr, n, n < num_samples, num_classes, ignore_index)
            dx = _gradient(x, first + offs, row[0], row[1], row[2], scale)
            tl.store(dlogits_ptr + offs, dx.to(kind), mask=mask)
            n += 1
            first -= num_classes


def cross_entropy_rows(
    logits: Tensor, target: Tensor, losses: Tensor, lse: Tensor, *, ignore_index: int
) -> None:
    """losses[n] = lse[n] - logits[n, target[n]], or 0 where ignored; lse[n] = log sum exp of a row.

    `target` int64 [N], `losses` and `lse` float32 [N].
    """
    samples, classes = logits.shape
    if samples == 0:
        return
    divisor = min(classes & -classes, ALIGNMENT)
    if classes > ROWS_TILE:
        vector = min(divisor, 16 // logits.element_size())
        _row_kernel[(samples,)](
            logits, target, losses, lse, classes, ignore_index,
            LOADS=max(LOADS // vector, 2), BLOCK=LANES * vector, DIVISOR=divisor,
            num_warps=LANES // 32,
        )  # fmt: skip
        return
    tile = _tile(classes, ROWS_TILE)
    _rows_kernel[(triton.cdiv(samples, tile["ROWS"]),)](
        logits, target, losses, lse, samples, classes, ignore_index,
        **tile, DIVISOR=divisor, num_warps=1,
    )  # fmt: skip


def cross_entropy_total(
    losses: Tensor, target: Tensor, total: Tensor, *, reduction: str, ignore_index: int
) -> None:
    """total = (loss, divisor) float32 [2]: the "sum" of the losses, or their "mean".

    The mean divides by the number of targets that are not ignored; with none of them it is NaN.
    """
    _total_kernel[(1,)](
        losses, target, total, losses.shape[0], ignore_index,
        MEAN=reduction == "mean", BLOCK=SUM_BLOCK, num_warps=SUM_WARPS,
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
    operands = (logits, target, lse, total, control, dlogits, samples, classes, ignore_index)
    if classes > GRAD_ROWS_TILE:
        grid = (triton.cdiv(samples * classes, GRAD_TILE),)
        _grad_kernel[grid](*operands, BLOCK=GRAD_TILE, num_warps=GRAD_WARPS)
        return
    tile = _tile(classes, GRAD_ROWS_TILE)
    _grad_rows_kernel[(triton.cdiv(samples, tile["ROWS"]),)](
        *operands, **tile, DIVISOR=min(classes & -classes, ALIGNMENT), num_warps=GRAD_WARPS
    )


def _tile(classes: int, tile: int) -> dict[str, int]:
    """Rows and classes of a program whose blocks hold whole rows."""
    block = triton.next_power_of_2(classes)
    return {"ROWS": min(tile // block, MOST_ROWS), "BLOCK": block}


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

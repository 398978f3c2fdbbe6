"""Cross-entropy of logits against class indices, for rows [N, C] and for the pixels of maps.

A target that is neither a class nor `ignore_index` makes its row's loss and gradient NaN. Classes
may have weights. Targets may be smoothed (Szegedy et al. 2016): a share `smoothing` of a target is
spread evenly over all classes. Launchers write partial sums as pairs, the loss and the divisor of
its mean. `loss_total` adds them in a fixed order.
"""

from math import gcd
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.channel_ranges import pitch_of, word_of
from .logits import (
    load_logits,
    spread_of_row,
    spread_of_rows,
    top_and_log_total,
    top_and_total_of_row,
)

ROWS_TILE: Final = 2048  # logits of a program of one warp, whose maxima need no shared memory
LANES: Final = 128  # threads that share a row of more than ROWS_TILE logits
LOADS: Final = 16  # logits of a thread that are in flight together
MOST_ROWS: Final = 64  # rows of a program, at most
PIXELS_TILE: Final = 2048  # logits of a step over pixels
PIXEL_STEPS: Final = 8  # steps of a program
PIXEL_WARPS: Final = 4
MOST_CLASSES: Final = PIXELS_TILE  # classes of pixels, at most
# Pairs of a block of the program that sums all. 65536 pairs take 7.7 us, and 25 us with one block
# in flight instead of SUM_UNROLL (H200, 2026-11-21).
SUM_BLOCK: Final = 4096
SUM_UNROLL: Final = 4  # blocks in flight together
SUM_WARPS: Final = 32


@triton.jit
def _terms(
    n, mask_n, target_ptr, weight_ptr, row_ptrs, top, log_total, spread, num_classes, ignore_index,
    smoothing, WEIGHTED: tl.constexpr, SMOOTHED: tl.constexpr,
):  # fmt: skip
    """The losses of rows n, and their summands of the mean's divisor."""
    target = tl.load(target_ptr + n, mask=mask_n, other=0)
    is_class = mask_n & (target >= 0) & (target < num_classes)
    chosen = tl.load(row_ptrs + target, mask=is_class, other=0.0).to(tl.float32)
    loss = log_total + (top - chosen)
    weight = (target == target).to(tl.float32)  # 1 for each
    if WEIGHTED:
        weight = tl.load(weight_ptr + target, mask=is_class, other=1.0)
        loss *= weight
    if SMOOTHED:
        loss = loss * (1.0 - smoothing) + spread * (smoothing / num_classes)
    loss = tl.where(is_class, loss, float("nan"))
    counts = mask_n & (target != ignore_index)
    return tl.where(counts, loss, 0.0), tl.where(counts, weight, 0.0)


@triton.jit(do_not_specialize=["ignore_index"])
def _row_kernel(
    logits_ptr, target_ptr, weight_ptr, terms_ptr, lse_ptr, num_classes, pitch, ignore_index,
    smoothing, WEIGHTED: tl.constexpr, SMOOTHED: tl.constexpr,
    LOADS: tl.constexpr, BLOCK: tl.constexpr, WORD: tl.constexpr, DIVISOR: tl.constexpr,
):  # fmt: skip
    """A program computes one row. WORD divides the pitch, DIVISOR the number of classes."""
    num_classes = num_classes // DIVISOR * DIVISOR
    n = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + n * (pitch // WORD * WORD)
    top, total = top_and_total_of_row(row_ptr, num_classes, LOADS, BLOCK)
    log_total, spread = tl.log(total), 0.0
    if SMOOTHED:
        spread = spread_of_row(
            row_ptr, weight_ptr, num_classes, top, log_total, WEIGHTED, LOADS, BLOCK
        )
    loss, divisor = _terms(
        n, True, target_ptr, weight_ptr, row_ptr, top, log_total, spread, num_classes,
        ignore_index, smoothing, WEIGHTED, SMOOTHED,
    )  # fmt: skip
    tl.store(terms_ptr + 2 * n, loss)
    tl.store(terms_ptr + 2 * n + 1, divisor)
    tl.store(lse_ptr + n, top + log_total)


@triton.jit
def _terms_of_rows(
    logits_ptr, target_ptr, weight_ptr, count, num_classes, pitch, ignore_index, smoothing,
    WEIGHTED: tl.constexpr, SMOOTHED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, WORD: tl.constexpr,
):  # fmt: skip
    """Losses, divisors, logarithms of summed exponentials of `count` rows from the pointers on.

    Each is [ROWS]. A row is one block. WORD divides the pitch, which gives the rows' alignment.
    """
    n, classes = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    row_ptrs, mask_n = logits_ptr + n.to(tl.int64) * (pitch // WORD * WORD), n < count
    x = load_logits(row_ptrs, classes, mask_n, num_classes, WORD)
    top, log_total = top_and_log_total(x)
    spread = 0.0
    if SMOOTHED:
        spread = spread_of_rows(x, weight_ptr, classes, num_classes, top, log_total, WEIGHTED)
    loss, divisor = _terms(
        n, mask_n, target_ptr, weight_ptr, row_ptrs, top, log_total, spread, num_classes,
        ignore_index, smoothing, WEIGHTED, SMOOTHED,
    )  # fmt: skip
    return loss, divisor, top + log_total


@triton.jit(do_not_specialize=["num_samples", "ignore_index"])
def _rows_kernel(
    logits_ptr, target_ptr, weight_ptr, terms_ptr, lse_ptr, num_samples, num_classes, pitch,
    ignore_index, smoothing, WEIGHTED: tl.constexpr, SMOOTHED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, WORD: tl.constexpr,
):  # fmt: skip
    """A program computes ROWS rows, each in one block."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    count = tl.minimum(num_samples - first, ROWS).to(tl.int32)
    loss, divisor, lse = _terms_of_rows(
        logits_ptr + first * (pitch // WORD * WORD), target_ptr + first, weight_ptr, count,
        num_classes, pitch, ignore_index, smoothing, WEIGHTED, SMOOTHED, ROWS, BLOCK, WORD,
    )  # fmt: skip
    n = tl.arange(0, ROWS)
    mask_n = n < count
    tl.store(terms_ptr + 2 * first + 2 * n, loss, mask=mask_n)
    tl.store(terms_ptr + 2 * first + 2 * n + 1, divisor, mask=mask_n)
    tl.store(lse_ptr + first + n, lse, mask=mask_n)


@triton.jit(do_not_specialize=["num_pixels", "ignore_index", "splits"])
def _pixels_kernel(
    logits_ptr, target_ptr, weight_ptr, partials_ptr, num_pixels, num_classes, pitch, splits,
    ignore_index, smoothing, WEIGHTED: tl.constexpr, SMOOTHED: tl.constexpr,
    STEPS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WORD: tl.constexpr,
):  # fmt: skip
    """A program sums STEPS * ROWS pixels of one sample. The logits of each are one block."""
    sample, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pitch = pitch // WORD * WORD
    first = split * (STEPS * ROWS)
    logits_ptr += (sample * num_pixels + first) * pitch
    target_ptr += sample * num_pixels + first
    losses = tl.zeros((ROWS,), tl.float32)
    divisors = tl.zeros((ROWS,), tl.float32)
    for start in range(first, tl.minimum(first + STEPS * ROWS, num_pixels), ROWS):
        loss, divisor, _ = _terms_of_rows(
            logits_ptr, target_ptr, weight_ptr, num_pixels - start, num_classes, pitch,
            ignore_index, smoothing, WEIGHTED, SMOOTHED, ROWS, BLOCK, WORD,
        )  # fmt: skip
        losses += loss
        divisors += divisor
        logits_ptr += ROWS * pitch
        target_ptr += ROWS
    partials_ptr += 2 * (sample * splits + split)
    tl.store(partials_ptr, tl.sum(losses, 0))
    tl.store(partials_ptr + 1, tl.sum(divisors, 0))


@triton.jit(do_not_specialize=["num_partials"])
def _total_kernel(
    partials_ptr, previous_ptr, total_ptr, num_partials, share,
    MEAN: tl.constexpr, ADDED: tl.constexpr, UNROLL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program sums all pairs. Each lane sums every BLOCK-th pair, in index order."""
    offs = tl.arange(0, BLOCK)[:, None] * 2 + tl.arange(0, 2)[None, :]  # [BLOCK, 2]
    totals = tl.zeros((BLOCK, 2), tl.float32)
    for start in tl.range(0, num_partials, BLOCK, loop_unroll_factor=UNROLL):
        mask = offs < 2 * (num_partials - start)
        totals += tl.load(partials_ptr + 2 * start + offs, mask=mask, other=0.0)
    total, counted = tl.split(totals)
    loss = tl.sum(total, 0)
    divisor = 1.0
    if MEAN:
        divisor = tl.sum(counted, 0)
    loss = loss / divisor * share
    if ADDED:
        loss += tl.load(previous_ptr)
    tl.store(total_ptr, loss)
    tl.store(total_ptr + 1, divisor / share)


def cross_entropy_rows(
    logits: Tensor, target: Tensor, weight: Tensor | None, terms: Tensor, lse: Tensor, *,
    ignore_index: int, smoothing: float,
) -> None:  # fmt: skip
    """The loss of each row of logits [N, C], and lse [N], the logarithm of its summed exponentials.

    terms [N, 2] get w * (1 - smoothing) * (lse - logit of the target) + smoothing * the mean of
    w_c * (lse - logit of c) over all classes c, and w. Both are 0 where the target is ignored. w is
    the target's weight: 1, or that of `weight` [C + 1], which `with_sum` makes. `target` is int64
    [N]. All but logits are float32.
    """
    samples, classes = logits.shape
    if samples == 0:
        return
    flags, word, pitch = _flags(weight, smoothing), word_of(logits), pitch_of(logits)
    if classes > ROWS_TILE:
        vector = gcd(classes, 16 // logits.element_size())
        _row_kernel[(samples,)](
            logits, target, weight, terms, lse, classes, pitch, ignore_index, smoothing, **flags,
            LOADS=max(LOADS // vector, 2), BLOCK=LANES * vector, WORD=word, DIVISOR=vector,
            num_warps=LANES // 32,
        )  # fmt: skip
        return
    block = triton.next_power_of_2(classes)
    rows = min(ROWS_TILE // block, MOST_ROWS)
    _rows_kernel[(triton.cdiv(samples, rows),)](
        logits, target, weight, terms, lse, samples, classes, pitch, ignore_index, smoothing,
        **flags, ROWS=rows, BLOCK=block, WORD=word, num_warps=1,
    )  # fmt: skip


def cross_entropy_pixels(
    logits: Tensor, target: Tensor, weight: Tensor | None, partials: Tensor, *,
    ignore_index: int, smoothing: float,
) -> None:  # fmt: skip
    """Sums of the terms of `cross_entropy_rows` over pixels: logits [N, P, C], target [N, P].

    Partial j of a sample in float32 `partials` [N, `pixel_splits`(P, C), 2] sums the j-th run of
    its pixels. C is at most MOST_CLASSES.
    """
    samples, pixels, classes = logits.shape
    if samples == 0:
        return
    splits = pixel_splits(pixels, classes)
    _pixels_kernel[(samples, splits)](
        logits, target, weight, partials, pixels, classes, pitch_of(logits), splits,
        ignore_index, smoothing, **_flags(weight, smoothing), STEPS=PIXEL_STEPS,
        ROWS=_pixel_rows(classes), BLOCK=triton.next_power_of_2(classes), WORD=word_of(logits),
        num_warps=PIXEL_WARPS,
    )  # fmt: skip


def loss_total(
    partials: Tensor, previous: Tensor | None, total: Tensor, *, mean: bool, share: float
) -> None:
    """total [2] = (loss * share, divisor / share) from partial sums of pairs [..., 2], float32.

    The loss is the sum of the first elements of all pairs. With `mean` it is divided by the sum of
    the second elements, and is NaN where that is 0; else the divisor is 1. The loss `previous` [1]
    is added to total[0].
    """
    _total_kernel[(1,)](
        partials, previous, total, partials.numel() // 2, share,
        MEAN=mean, ADDED=previous is not None, UNROLL=SUM_UNROLL, BLOCK=SUM_BLOCK,
        num_warps=SUM_WARPS,
    )  # fmt: skip


def pixel_splits(pixels: int, classes: int) -> int:
    """Number of partial sums of a sample of `pixels`."""
    return triton.cdiv(pixels, PIXEL_STEPS * _pixel_rows(classes))


def with_sum(weight: Tensor) -> Tensor:
    """Class weights [C] as kernels read them: float32 [C + 1], the last element their sum."""
    weight = weight.detach().float()
    return torch.cat([weight, weight.sum(0, keepdim=True)])


def _pixel_rows(classes: int) -> int:
    """Pixels of a step of a program."""
    return PIXELS_TILE // triton.next_power_of_2(classes)


def _flags(weight: Tensor | None, smoothing: float) -> dict[str, bool]:
    return {"WEIGHTED": weight is not None, "SMOOTHED": smoothing != 0}


def cross_entropy_rows_reference(
    logits: Tensor, target: Tensor, weight: Tensor | None, terms: Tensor, lse: Tensor, *,
    ignore_index: int, smoothing: float,
) -> None:  # fmt: skip
    """Computes `cross_entropy_rows` in torch."""
    wide = logits.double()
    classes = wide.shape[1]
    weights = wide.new_ones(classes) if weight is None else weight[:classes].double()
    chosen = target.clamp(0, classes - 1)
    log_shares = wide.log_softmax(1)
    losses = -weights[chosen] * log_shares.gather(1, chosen[:, None])[:, 0]
    if smoothing:
        spread = -(weights * log_shares).sum(1)
        losses = losses * (1 - smoothing) + spread * (smoothing / classes)
    is_class = (target >= 0) & (target < classes)
    pair = torch.stack([losses.where(is_class, torch.nan), weights[chosen]], 1)
    pair[:, 1].masked_fill_(~is_class, 1.0)
    terms.copy_(pair.masked_fill((target == ignore_index)[:, None], 0.0))
    lse.copy_(wide.logsumexp(1))


def cross_entropy_pixels_reference(
    logits: Tensor, target: Tensor, weight: Tensor | None, partials: Tensor, *,
    ignore_index: int, smoothing: float,
) -> None:  # fmt: skip
    """Computes `cross_entropy_pixels` in torch."""
    samples, pixels, classes = logits.shape
    terms = partials.new_empty(samples, pixels, 2)
    settings = {"ignore_index": ignore_index, "smoothing": smoothing}
    rows, lse = logits.reshape(-1, classes), terms.new_empty(samples * pixels)
    cross_entropy_rows_reference(
        rows, target.reshape(-1), weight, terms.view(-1, 2), lse, **settings
    )
    shares = terms.double().split(PIXEL_STEPS * _pixel_rows(classes), 1)
    for split, share in enumerate(shares):
        partials[:, split] = share.sum(1)


def loss_total_reference(
    partials: Tensor, previous: Tensor | None, total: Tensor, *, mean: bool, share: float
) -> None:
    """Computes `loss_total` in torch."""
    loss, counted = partials.view(-1, 2).double().sum(0)
    divisor = counted if mean else torch.ones_like(counted)
    total[0] = loss / divisor * share + (0.0 if previous is None else previous[0])
    total[1] = divisor / share

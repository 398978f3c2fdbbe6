"""The gradient of cross-entropy by row: scale * (softmax * sum(target) - target).

The target of a row has the weighted and smoothed shares of all classes.
"""

from math import gcd
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.channel_ranges import pitch_of, word_of
from ..language.rounding import stored, stored_reference
from .cross_entropy import MOST_ROWS
from .logits import exponentials_of_rows, load_logits

ROWS_TILE: Final = 2048  # logits of a program of whole rows
TILE: Final = 1024  # logits of a program where a row has more than ROWS_TILE
NUM_WARPS: Final = 4


@triton.jit
def _factors(
    target_ptr, weight_ptr, n, mask_n, num_classes, ignore_index, scale, smoothing,
    WEIGHTED: tl.constexpr, SMOOTHED: tl.constexpr,
):  # fmt: skip
    """Of rows n: the target, -1 if it is no class, whether it is ignored, and two factors.

    The gradient is `pull` times the softmax, minus `hot` at the target, minus `_spread`.
    """
    target = tl.load(target_ptr + n, mask=mask_n, other=0)
    is_class = mask_n & (target >= 0) & (target < num_classes)
    hot = tl.where(is_class, scale, 0.0)
    if WEIGHTED:
        hot *= tl.load(weight_ptr + target, mask=is_class, other=0.0)
    pull = hot
    if SMOOTHED:
        hot *= 1.0 - smoothing
        spread = scale * smoothing
        if WEIGHTED:
            spread *= tl.load(weight_ptr + num_classes) / num_classes
        pull = hot + spread
    return tl.where(is_class, target, -1).to(tl.int32), target == ignore_index, pull, hot


@triton.jit
def _spread(
    weight_ptr, classes, num_classes, scale, smoothing,
    WEIGHTED: tl.constexpr, SMOOTHED: tl.constexpr,
):  # fmt: skip
    """The smoothed share of each class, which the gradient of every row subtracts."""
    spread = classes * 0.0
    if SMOOTHED:
        spread += scale * (smoothing / num_classes)
        if WEIGHTED:
            mask = (classes >= 0) & (classes < num_classes)
            spread *= tl.load(weight_ptr + classes, mask=mask, other=0.0)
    return spread


@triton.jit
def _gradient(share, classes, target, ignored, pull, hot, spread):
    """The gradient of logits: 0 where the target is ignored, NaN where it is no class.

    `pull` times `share` is what the softmax contributes.
    """
    less = -tl.where(classes == target, hot, 0.0) - spread
    fill = tl.where(ignored, 0.0, float("nan"))
    return tl.where((target >= 0) & (ignored == 0), tl.fma(share, pull, less), fill)


@triton.jit(do_not_specialize=["num_samples", "ignore_index"])
def _rows_kernel(
    logits_ptr, target_ptr, weight_ptr, lse_ptr, total_ptr, control_ptr, dlogits_ptr,
    num_samples, num_classes, pitch, dpitch, ignore_index, smoothing,
    WEIGHTED: tl.constexpr, SMOOTHED: tl.constexpr, AGAIN: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    WORD: tl.constexpr, DWORD: tl.constexpr, STORED: tl.constexpr,
):  # fmt: skip
    """A program computes ROWS rows, each in one block. AGAIN: it sums the exponentials itself.

    WORD and DWORD divide the pitches. Zeros fill up whole multiples of STORED classes.
    """
    pitch, dpitch = pitch // WORD * WORD, dpitch // DWORD * DWORD
    first = tl.program_id(0).to(tl.int64) * ROWS
    n, classes = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    mask_n = n < tl.minimum(num_samples - first, ROWS).to(tl.int32)
    n64 = n.to(tl.int64)
    x = load_logits(logits_ptr + first * pitch + n64 * pitch, classes, mask_n, num_classes, WORD)
    if AGAIN:
        share, total = exponentials_of_rows(x)
    else:
        share = tl.exp(x - tl.load(lse_ptr + first + n, mask=mask_n, other=0.0)[:, None])
    scale = tl.load(control_ptr) / tl.load(total_ptr + 1)
    target, ignored, pull, hot = _factors(
        target_ptr + first, weight_ptr, n, mask_n, num_classes, ignore_index, scale, smoothing,
        WEIGHTED, SMOOTHED,
    )  # fmt: skip
    if AGAIN:
        pull /= total
    spread = _spread(weight_ptr, classes, num_classes, scale, smoothing, WEIGHTED, SMOOTHED)
    dx = _gradient(
        share, classes[None, :], target[:, None], ignored[:, None], pull[:, None], hot[:, None],
        spread[None, :],
    )  # fmt: skip
    if STORED > 1:
        dx = tl.where((classes < num_classes)[None, :], dx, 0.0)
    ptrs = dlogits_ptr + first * dpitch + (n64 * dpitch)[:, None] + classes[None, :]
    mask = mask_n[:, None] & (classes < tl.cdiv(num_classes, STORED) * STORED)[None, :]
    tl.store(ptrs, stored(dx, dlogits_ptr.dtype.element_ty, PRECISION), mask=mask)


@triton.jit
def _gradient_of_row(
    x, classes, lse, target_ptr, weight_ptr, n, mask_n, num_classes, ignore_index, scale, smoothing,
    WEIGHTED: tl.constexpr, SMOOTHED: tl.constexpr,
):  # fmt: skip
    """The gradient of logits x at `classes` of row n."""
    target, ignored, pull, hot = _factors(
        target_ptr, weight_ptr, n, mask_n, num_classes, ignore_index, scale, smoothing,
        WEIGHTED, SMOOTHED,
    )  # fmt: skip
    spread = _spread(weight_ptr, classes, num_classes, scale, smoothing, WEIGHTED, SMOOTHED)
    return _gradient(tl.exp(x - lse), classes, target, ignored, pull, hot, spread)


@triton.jit(do_not_specialize=["num_samples", "num_classes", "ignore_index"])
def _tiles_kernel(
    logits_ptr, target_ptr, weight_ptr, lse_ptr, total_ptr, control_ptr, dlogits_ptr,
    num_samples, num_classes, gap, dgap, ignore_index, smoothing,
    WEIGHTED: tl.constexpr, SMOOTHED: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program computes BLOCK consecutive logits, which lie in one row or in two.

    `gap` and `dgap` elements lie between the rows of logits and of dlogits.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    n = start // num_classes
    offs = tl.arange(0, BLOCK)
    classes = (start - n * num_classes).to(tl.int32) + offs
    logits_ptr += start + n * gap
    dlogits_ptr += start + n * dgap
    scale = tl.load(control_ptr) / tl.load(total_ptr + 1)
    kind = dlogits_ptr.dtype.element_ty
    if start + BLOCK <= (n + 1) * num_classes:
        x = tl.load(logits_ptr + offs).to(tl.float32)
        dx = _gradient_of_row(
            x, classes, tl.load(lse_ptr + n), target_ptr, weight_ptr, n, True, num_classes,
            ignore_index, scale, smoothing, WEIGHTED, SMOOTHED,
        )  # fmt: skip
        tl.store(dlogits_ptr + offs, stored(dx, kind, PRECISION))
    else:
        for _ in range(2):
            mask_n = n < num_samples
            mask = (classes >= 0) & (classes < num_classes) & mask_n
            x = tl.load(logits_ptr + offs, mask=mask, other=0.0).to(tl.float32)
            lse = tl.load(lse_ptr + n, mask=mask_n, other=0.0)
            dx = _gradient_of_row(
                x, classes, lse, target_ptr, weight_ptr, n, mask_n, num_classes,
                ignore_index, scale, smoothing, WEIGHTED, SMOOTHED,
            )  # fmt: skip
            tl.store(dlogits_ptr + offs, stored(dx, kind, PRECISION), mask=mask)
            n += 1
            classes -= num_classes
            logits_ptr += gap
            dlogits_ptr += dgap


def cross_entropy_grad(
    logits: Tensor, target: Tensor, weight: Tensor | None, lse: Tensor | None, total: Tensor,
    control: Tensor, dlogits: Tensor, *,
    ignore_index: int, smoothing: float, precision: str = "ieee", padded: bool = False,
) -> None:  # fmt: skip
    """The gradient dlogits [M, C] of cross-entropy, times control[0] / total[1].

    Rows whose target is ignored get 0. `control` float32 [1] on the device is the gradient of the
    loss, or a loss scale. `total` is that of `loss_total`. `lse` [M] is that of
    `cross_entropy_rows`; rows of at most MOST_CLASSES do without it. dlogits are rounded as
    products of `precision` read them. Of `padded` dlogits, what follows the last class belongs to
    nobody up to a multiple of 16 bytes, and may get zeros.
    """
    rows, classes = logits.shape
    if rows == 0:
        return
    operands = (logits, target, weight, lse, total, control, dlogits, rows, classes)
    pitches, settings = (pitch_of(logits), pitch_of(dlogits)), (ignore_index, smoothing)
    flags = {"WEIGHTED": weight is not None, "SMOOTHED": smoothing != 0, "PRECISION": precision}
    if classes > ROWS_TILE:
        gaps = (pitch - classes for pitch in pitches)
        grid = (triton.cdiv(rows * classes, TILE),)
        _tiles_kernel[grid](*operands, *gaps, *settings, **flags, BLOCK=TILE, num_warps=NUM_WARPS)
        return
    block, words = triton.next_power_of_2(classes), (word_of(logits), word_of(dlogits))
    tile = ROWS_TILE // block if lse is None else min(ROWS_TILE // block, MOST_ROWS)
    _rows_kernel[(triton.cdiv(rows, tile),)](
        *operands, *pitches, *settings, **flags, AGAIN=lse is None, ROWS=tile, BLOCK=block,
        WORD=words[0], DWORD=words[1], STORED=words[1] if padded else gcd(words[1], classes),
        num_warps=NUM_WARPS,
    )  # fmt: skip


def cross_entropy_grad_reference(
    logits: Tensor, target: Tensor, weight: Tensor | None, lse: Tensor | None, total: Tensor,
    control: Tensor, dlogits: Tensor, *,
    ignore_index: int, smoothing: float, precision: str = "ieee", padded: bool = False,
) -> None:  # fmt: skip
    """Computes `cross_entropy_grad` in torch."""
    wide = logits.double()
    classes = wide.shape[1]
    weights = wide.new_ones(classes) if weight is None else weight[:classes].double()
    is_class = (target >= 0) & (target < classes)
    hot = torch.nn.functional.one_hot(target.where(is_class, 0), classes)
    shares = weights * (hot * (1 - smoothing) + smoothing / classes)
    gradient = wide.softmax(1) * shares.sum(1, keepdim=True) - shares
    gradient *= control.double() / total[1].double()
    gradient.masked_fill_(~is_class[:, None], torch.nan)
    gradient.masked_fill_((target == ignore_index)[:, None], 0.0)
    dlogits.copy_(stored_reference(gradient.float(), dlogits.dtype, precision))

"""Rows of logits: maxima, logarithms of summed exponentials, and sums of losses over classes."""

from typing import Final

import triton
import triton.language as tl

LOG2_E: Final = tl.constexpr(1.4426950408889634)


@triton.jit
def _shift(top):
    """The summand by which exp(x - top) = 2^(x log2(e) + shift); 0 where top is -inf."""
    return tl.where(top == float("-inf"), 0.0, top * -LOG2_E)


@triton.jit
def _exponentials(x, shift):
    return tl.exp2(tl.fma(x, LOG2_E, shift))


@triton.jit
def _with_logits(top, total, x):
    """Running maxima and sums of exp(logit - maximum) [LANES] after logits x [LOADS, LANES]."""
    higher = tl.maximum(top, tl.max(x, 0))
    shift = _shift(higher)
    total = total * _exponentials(top, shift) + tl.sum(_exponentials(x, shift[None, :]), 0)
    return higher, total


@triton.jit
def top_and_total_of_row(
    row_ptr, num_classes, LOADS: tl.constexpr, BLOCK: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """The largest logit of a row, and the sum of exp(logit - largest), in one pass.

    A lane takes every BLOCK-th class. The sum does not depend on the row's alignment.
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
def spread_of_row(
    row_ptr, weight_ptr, num_classes, top, log_total,
    WEIGHTED: tl.constexpr, LOADS: tl.constexpr, BLOCK: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The sum over all classes of a row of weight * (log of summed exponentials - logit)."""
    offs = tl.arange(0, LOADS)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]  # [LOADS, BLOCK]
    total = tl.zeros((LOADS, BLOCK), tl.float32)
    for start in range(0, num_classes, LOADS * BLOCK):
        mask = offs < num_classes - start
        x = tl.load(row_ptr + start + offs, mask=mask, other=0.0).to(tl.float32)
        losses = log_total + (top - x)
        if WEIGHTED:
            losses *= tl.load(weight_ptr + start + offs, mask=mask, other=0.0)
        total += tl.where(mask, losses, 0.0)
    return tl.sum(tl.sum(total, 0), 0)


@triton.jit
def load_logits(row_ptrs, classes, mask_n, num_classes, WORD: tl.constexpr) -> tl.tensor:
    """Rows of logits in one block, float32 [ROWS, BLOCK]; -inf outside them.

    Rows start at multiples of WORD elements. Whole words are loaded: what lies behind a row's last
    class may be anything.
    """
    mask = (classes < tl.cdiv(num_classes, WORD) * WORD)[None, :] & mask_n[:, None]
    ptrs = row_ptrs[:, None] + classes[None, :]
    x = tl.load(ptrs, mask=mask, other=float("-inf")).to(tl.float32)
    if WORD > 1:
        x = tl.where((classes < num_classes)[None, :], x, float("-inf"))
    return x


@triton.jit
def top_and_log_total(x) -> tuple[tl.tensor, tl.tensor]:
    """The largest logit, and log(sum exp(x - largest)), of each of the rows x [ROWS, BLOCK]."""
    top = tl.max(x, 1)
    return top, tl.log(tl.sum(_exponentials(x, _shift(top)[:, None]), 1))


@triton.jit
def exponentials_of_rows(x) -> tuple[tl.tensor, tl.tensor]:
    """exp(x - largest) of rows x [ROWS, BLOCK], and the sums of the rows [ROWS]."""
    exponentials = _exponentials(x, _shift(tl.max(x, 1))[:, None])
    return exponentials, tl.sum(exponentials, 1)


@triton.jit
def spread_of_rows(
    x, weight_ptr, classes, num_classes, top, log_total, WEIGHTED: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """`spread_of_row` of rows x [ROWS, BLOCK] in one block: [ROWS]."""
    losses = log_total[:, None] + (top[:, None] - x)
    if WEIGHTED:
        losses *= tl.load(weight_ptr + classes, mask=classes < num_classes, other=0.0)[None, :]
    return tl.sum(tl.where((classes < num_classes)[None, :], losses, 0.0), 1)

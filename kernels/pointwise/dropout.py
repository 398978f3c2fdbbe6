"""Dropout without a stored mask: Philox (Salmon et al. 2011) gives the mask again from a counter.

The counter is an element's index in the whole batch. The mask therefore does not depend on which
samples a launch covers. Elements come in aligned spans of 8 * LANES. One Philox call gives four
words. Their eight halves are the draws of the one or two 16-byte vectors that a lane loads, so that
a thread draws for the elements that it loads. p is rounded to a multiple of 2**-16. With a whole
word an element the draws would bound the kernel, at 79% of a copy's speed (H200, 2026-11-21).
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.philox import ROUNDS, random_words, random_words_reference
from ..language.rounding import stored, stored_reference

LANES: Final = 128  # lanes of a program, each with a Philox call of its own
DRAWS: Final = 8  # draws of one Philox call
NUM_WARPS: Final = 4


@triton.jit
def _halves(first, second):
    """The halves of words [..., N] in order: [..., N, word, half]."""
    words = tl.join(first, second)
    return tl.join(words & 0xFFFF, words >> 16)


@triton.jit
def _drop(
    x_ptr, y_ptr, offs, numel, draws, least, scale, PRECISION: tl.constexpr, WHOLE: tl.constexpr
):
    mask = None if WHOLE else (offs >= 0) & (offs < numel)
    x = tl.load(x_ptr + offs, mask=mask, other=None if WHOLE else 0.0)
    keep = draws.reshape(offs.shape).to(tl.int32) >= least
    y = tl.where(keep, x.to(tl.float32) * scale, 0.0)
    tl.store(y_ptr + offs, stored(y, x.dtype, PRECISION), mask=mask)


@triton.jit
def _drop_span(
    x_ptr, y_ptr, start, numel, words, least, scale,
    VECTOR: tl.constexpr, PRECISION: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    LANES: tl.constexpr = words[0].shape[0]
    offs = start + tl.arange(0, VECTOR * LANES)
    if VECTOR == 8:
        even, odd = tl.join(words[0], words[2]), tl.join(words[1], words[3])
        _drop(x_ptr, y_ptr, offs, numel, _halves(even, odd), least, scale, PRECISION, WHOLE)
    else:
        first, second = _halves(words[0], words[1]), _halves(words[2], words[3])
        _drop(x_ptr, y_ptr, offs, numel, first, least, scale, PRECISION, WHOLE)
        _drop(x_ptr, y_ptr, offs + VECTOR * LANES, numel, second, least, scale, PRECISION, WHOLE)


@triton.jit(do_not_specialize=["numel", "op_id", "least"])
def _dropout_kernel(
    x_ptr, y_ptr, seed_ptr, numel, first, op_id, least, scale,
    VECTOR: tl.constexpr, PRECISION: tl.constexpr, LANES: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    span = first // (8 * LANES) + tl.program_id(0).to(tl.int64)
    counter = span * LANES + tl.arange(0, LANES)
    words = random_words(seed_ptr, counter, op_id, ROUNDS)
    start = span * (8 * LANES) - first
    if (start >= 0) & (start + 8 * LANES <= numel):
        _drop_span(x_ptr, y_ptr, start, numel, words, least, scale, VECTOR, PRECISION, True)
    else:
        _drop_span(x_ptr, y_ptr, start, numel, words, least, scale, VECTOR, PRECISION, False)


def _vector(x: Tensor) -> int:
    """Elements of a 16-byte load."""
    return 16 // x.element_size()


def first_element(x: Tensor, first_sample: int) -> int:
    """The index in the whole batch of the first element of x."""
    return first_sample * x[:1].numel()


def scale_of(p: float) -> float:
    """The factor of kept elements, 1 / (1 - p), or 0 where all are dropped."""
    return 1.0 / (1.0 - p) if p < 1.0 else 0.0


def _least_kept(p: float) -> int:
    """The least draw of 16 bits whose element is kept."""
    return round(p * (1 << 16))


def dropout(
    x: Tensor, y: Tensor, seed: Tensor, *,
    p: float, op_id: int, first_sample: int, precision: str = "ieee",
) -> None:  # fmt: skip
    """y = 0 with probability p, else x / (1 - p). The same call on dy gives dx. y may be x.

    `seed` is int64 [1] on the device. `op_id`, below 2**31, gives each op its own random numbers.
    `first_sample` is the index in the batch of the first sample of x. x is contiguous. y is rounded
    as products of `precision` read it.
    """
    numel = x.numel()
    if numel == 0:
        return
    first = first_element(x, first_sample)
    span = DRAWS * LANES
    grid = (triton.cdiv(first + numel, span) - first // span,)
    _dropout_kernel[grid](
        x, y, seed, numel, first, op_id, _least_kept(p), scale_of(p),
        VECTOR=_vector(x), PRECISION=precision, LANES=LANES, ROUNDS=ROUNDS, num_warps=NUM_WARPS,
    )  # fmt: skip


def dropout_reference(
    x: Tensor, y: Tensor, seed: Tensor, *,
    p: float, op_id: int, first_sample: int, precision: str = "ieee",
) -> None:  # fmt: skip
    """Computes `dropout` in torch, with the same mask."""
    first = first_element(x, first_sample)
    index = torch.arange(first, first + x.numel(), dtype=torch.int64, device=x.device)
    span, within = index // (DRAWS * LANES), index % (DRAWS * LANES)
    vector = _vector(x)
    words = random_words_reference(span * LANES + within // vector % LANES, op_id, seed)
    draw = within // (vector * LANES) * vector + within % vector
    word = words.gather(0, (draw // 2)[None])[0]
    keep = (word >> 16 * (draw % 2) & 0xFFFF) >= _least_kept(p)
    scaled = x.to(torch.float32) * scale_of(p)
    dropped = torch.where(keep.view_as(x), scaled, torch.zeros_like(scaled))
    y.copy_(stored_reference(dropped, y.dtype, precision))

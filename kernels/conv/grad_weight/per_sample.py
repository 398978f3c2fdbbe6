"""Weight gradients over small maps: a step is one pixel of many samples, never a padded pixel."""

from typing import Final

import triton
import triton.language as tl

from ...language.rounding import ended, stored
from ...norm.normalized_again import normalized_again
from ..remade import gated_again, gates_at, normalizer_at
from .program_steps import add_products, load_sum, part_of, share_of, store_sum

SIZES: Final = (
    "num_samples", "in_h", "in_w", "out_h", "out_w", "in_c", "out_c", "x_pitch", "dy_pitch",
    "splits", "range_start", "pad_h", "pad_w", "dil_h", "dil_w",
)  # fmt: skip


@triton.jit
def _valid_outputs(shift, in_size, out_size, STRIDE: tl.constexpr):
    """The first output whose input `output * STRIDE + shift` lies in the map, and their number."""
    start = tl.maximum(0, tl.cdiv(-shift, STRIDE))
    stop = tl.minimum(out_size, tl.cdiv(in_size - shift, STRIDE))
    return start, tl.maximum(0, stop - start)


@triton.jit(do_not_specialize=[*SIZES, "cut"])
def grad_weight_samples_kernel(
    x_desc, dy_desc, sums, bands,
    num_samples, in_h, in_w, out_h, out_w, in_c, out_c, x_pitch, dy_pitch,
    splits, range_start, pad_h, pad_w, dil_h, dil_w, cut, source, coefficient,
    FIRST: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    SWAP: tl.constexpr, MERGED: tl.constexpr, BY_GROUP: tl.constexpr,
    STAGES: tl.constexpr, MAKER: tl.constexpr, FUNCTION: tl.constexpr,
) -> None:  # fmt: skip
    """A program sums one tap. A unit is BLOCK_N samples, a step one output that the tap reaches.

    Filters of one tap may take each of `cut` parts of a sample as a sample.

    With a MAKER, for filters of one tap, x is made again (remade.py). Samples behind the last are
    then not zeros, those of dy are.
    """
    k, c, tap, split = part_of(
        tl.program_id(0), in_c, out_c, bands, R * S, BLOCK_K, BLOCK_C, BY_GROUP
    )
    shift_h = tap // S * dil_h - pad_h
    shift_w = tap % S * dil_w - pad_w
    first_h, num_h = _valid_outputs(shift_h, in_h, out_h, STRIDE_H)
    first_w, num_w = _valid_outputs(shift_w, in_w, out_w, STRIDE_W)
    start, share = share_of(range_start + split, splits, num_h * num_w)
    home_h, home_w = first_h + start // tl.maximum(num_w, 1), first_w + start % tl.maximum(num_w, 1)
    n, h, w, left = 0, home_h, home_w, share
    acc = load_sum(sums, bands, split, k, tap, c, FIRST, SWAP, MERGED, BY_GROUP, BLOCK_K, BLOCK_C)
    rows = tl.arange(0, BLOCK_N)[:, None]
    NORMALIZES: tl.constexpr = (MAKER == "normalize") | (MAKER == "normalize gate")
    GATES: tl.constexpr = (MAKER == "gate") | (MAKER == "normalize gate")
    if NORMALIZES:
        at = normalizer_at(source, c, in_c, BLOCK_C)
    if GATES:
        num_gated, gates_ptr = num_samples // cut, source[3] if NORMALIZES else source[0]
        gates = gates_at(gates_ptr, rows // cut, c, num_gated, in_c, BLOCK_C)
    for _ in tl.range(0, tl.cdiv(num_samples, BLOCK_N) * share, num_stages=STAGES):
        x_pixel = (h * STRIDE_H + shift_h) * in_w + w * STRIDE_W + shift_w
        dy = dy_desc.load([n, (h * out_w + w) * dy_pitch + k])
        x = x_desc.load([n, x_pixel * x_pitch + c])
        if NORMALIZES:
            x = normalized_again(x, at, coefficient, FUNCTION)
        if GATES:
            x = gated_again(x, gates)
        if MAKER != "":
            x = stored(x, x.dtype, PRECISION)
        acc = add_products(acc, dy, x, SWAP, PRECISION)
        if MAKER != "":
            acc = ended(acc)
        w += 1
        h = tl.where(w < first_w + num_w, h, h + 1)
        w = tl.where(w < first_w + num_w, w, first_w)
        left -= 1
        n = tl.where(left == 0, n + BLOCK_N, n)
        h = tl.where(left == 0, home_h, h)
        w = tl.where(left == 0, home_w, w)
        if GATES:  # noqa: SIM102
            if left == 0:  # most steps are of the same samples as the step before
                gates = gates_at(gates_ptr, (n + rows) // cut, c, num_gated, in_c, BLOCK_C)
        left = tl.where(left == 0, share, left)
    store_sum(sums, bands, acc, split, k, tap, c, SWAP, MERGED, BY_GROUP, BLOCK_K, BLOCK_C)


@triton.jit(do_not_specialize=SIZES)
def grad_weight_sample_taps_kernel(
    x_desc, dy_desc, sums, bands,
    num_samples, in_h, in_w, out_h, out_w, in_c, out_c, x_pitch, dy_pitch,
    splits, range_start, pad_h, pad_w, dil_h, dil_w,
    FIRST: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    SWAP: tl.constexpr, MERGED: tl.constexpr, BY_GROUP: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """A program sums a row of three taps, which share the loads of dy.

    Loads from the L2 cache bound the sums of tiles 64x64: 256->256 in 32 @28 loads 1.85 GB by
    `grad_weight_samples_kernel` in 0.21 ms (H100, N = 256, 2026-11), and 1.23 GB here. x is loaded
    as zeros beside the map.
    """
    k, c, r, split = part_of(tl.program_id(0), in_c, out_c, bands, R, BLOCK_K, BLOCK_C, BY_GROUP)
    shift_h = r * dil_h - pad_h
    first_h, num_h = _valid_outputs(shift_h, in_h, out_h, STRIDE_H)
    start, share = share_of(range_start + split, splits, num_h * out_w)
    home_h, home_w = first_h + start // out_w, start % out_w
    n, h, w, left = 0, home_h, home_w, share
    left_sum = load_sum(
        sums, bands, split, k, 3 * r, c, FIRST, SWAP, MERGED, BY_GROUP, BLOCK_K, BLOCK_C
    )
    mid_sum = load_sum(
        sums, bands, split, k, 3 * r + 1, c, FIRST, SWAP, MERGED, BY_GROUP, BLOCK_K, BLOCK_C
    )
    right_sum = load_sum(
        sums, bands, split, k, 3 * r + 2, c, FIRST, SWAP, MERGED, BY_GROUP, BLOCK_K, BLOCK_C
    )
    for _ in tl.range(0, tl.cdiv(num_samples, BLOCK_N) * share, num_stages=STAGES):
        row, column = h * STRIDE_H + shift_h, w * STRIDE_W - pad_w
        dy = dy_desc.load([n, (h * out_w + w) * dy_pitch + k])
        x = x_desc.load([n, row, column, c]).reshape(BLOCK_N, BLOCK_C)
        left_sum = add_products(left_sum, dy, x, SWAP, PRECISION)
        x = x_desc.load([n, row, column + dil_w, c]).reshape(BLOCK_N, BLOCK_C)
        mid_sum = add_products(mid_sum, dy, x, SWAP, PRECISION)
        x = x_desc.load([n, row, column + 2 * dil_w, c]).reshape(BLOCK_N, BLOCK_C)
        right_sum = add_products(right_sum, dy, x, SWAP, PRECISION)
        w += 1
        h = tl.where(w < out_w, h, h + 1)
        w = tl.where(w < out_w, w, 0)
        left -= 1
        n = tl.where(left == 0, n + BLOCK_N, n)
        h = tl.where(left == 0, home_h, h)
        w = tl.where(left == 0, home_w, w)
        left = tl.where(left == 0, share, left)
    # As `left` is never negative k stays as it is. The compiler does not know that, and forgets the
    # pointers of the loads: kept until here they spill 1.1 KB (sm_90a, triton 3.9, 2026-11).
    k += tl.minimum(left, 0)
    store_sum(sums, bands, left_sum, split, k, 3 * r, c, SWAP, MERGED, BY_GROUP, BLOCK_K, BLOCK_C)
    store_sum(
        sums, bands, mid_sum, split, k, 3 * r + 1, c, SWAP, MERGED, BY_GROUP, BLOCK_K, BLOCK_C
    )
    store_sum(
        sums, bands, right_sum, split, k, 3 * r + 2, c, SWAP, MERGED, BY_GROUP, BLOCK_K, BLOCK_C
    )

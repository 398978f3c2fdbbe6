"""Weight gradients of convolutions that keep a map's sides: a tap is an offset in the flat map.

Beyond the left or right edge of the map the offset of a tap wraps to the row above or below. The
splits sum the wrapped products too. `edges` more splits sum the wrapped products alone, negated.
"""

from typing import Final

import triton
import triton.language as tl

from ...language.rounding import ended, stored
from ...norm.normalized_again import normalized_again
from ..remade import gated_again, gates_at, normalizer_at
from .program_steps import (
    add_products,
    first_run,
    load_sum,
    next_run,
    part_of,
    share_of,
    steps_of,
    store_sum,
)

SIZES: Final = (
    "num_samples", "height", "width", "in_c", "out_c", "x_pitch", "dy_pitch",
    "unit", "splits", "edges", "range_start", "pad_h", "pad_w", "dil_h", "dil_w",
)  # fmt: skip


@triton.jit
def _edge_steps(split, edges, unit, num_samples, columns, runs):
    """First step of an edge split in a unit, its steps in a unit and in all units."""
    start, share = share_of(split, edges, unit * columns * runs)
    last = num_samples % unit * columns * runs
    return start, share, steps_of(start, share, unit, num_samples, last)


@triton.jit
def _edge_run(i, start, share, unit, columns, runs, BLOCK_E: tl.constexpr):
    """Sample, edge column and first row of step i of an edge split."""
    step = start + i % share
    n = i // share * unit + step // (columns * runs)
    return n, step // runs % columns, step % runs * BLOCK_E


@triton.jit
def _add_edge(
    acc, dy_desc, x_desc, steps, unit, wrapped, runs, dy_column, x_column, shift_h, k, c,
    dy_pitch, x_pitch, PRECISION: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_C: tl.constexpr, SWAP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Add the products of `wrapped` columns, those of dy and those of x from a column on.

    `steps` is what `_edge_steps` returns. The rows of x lie shift_h below those of dy.
    """
    start, share, count = steps
    for i in tl.range(0, count, num_stages=STAGES):
        n, column, h = _edge_run(i, start, share, unit, wrapped, runs, BLOCK_E)
        dy_place, x_place = (dy_column + column) * dy_pitch + k, (x_column + column) * x_pitch + c
        dy = dy_desc.load([n, h, dy_place]).reshape(BLOCK_E, BLOCK_K)
        x = x_desc.load([n, h + shift_h, x_place]).reshape(BLOCK_E, BLOCK_C)
        acc = add_products(acc, dy, x, SWAP, PRECISION)
    return acc


@triton.jit(do_not_specialize=SIZES)
def grad_weight_flat_kernel(
    x_desc, dy_desc, x_edge_desc, dy_edge_desc, sums, bands,
    num_samples, height, width, in_c, out_c, x_pitch, dy_pitch, unit, splits, edges,
    range_start, pad_h, pad_w, dil_h, dil_w, source, coefficient,
    FIRST: tl.constexpr, R: tl.constexpr, S: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    SWAP: tl.constexpr, MERGED: tl.constexpr, BY_GROUP: tl.constexpr,
    STAGES: tl.constexpr, MAKER: tl.constexpr, FUNCTION: tl.constexpr,
) -> None:  # fmt: skip
    """A program sums one tap at stride 1. Rows outside the map are loaded as zeros.

    With a MAKER, for filters of one tap, x is made again (remade.py). Rows behind a sample's are
    then not zeros, those of dy are.

    A step is a run of pixels of one sample. A step of an edge split is a run down an edge column.
    """
    k, c, tap, row = part_of(
        tl.program_id(0), in_c, out_c, bands, R * S, BLOCK_K, BLOCK_C, BY_GROUP
    )
    shift_h = tap // S * dil_h - pad_h
    shift_w = tap % S * dil_w - pad_w
    acc = load_sum(sums, bands, row, k, tap, c, FIRST, SWAP, MERGED, BY_GROUP, BLOCK_K, BLOCK_C)
    split = range_start + row
    if split >= splits:
        acc = -acc
        wrapped = tl.abs(shift_w)
        side = tl.where(shift_w < 0, 1, -1)  # maps by which a wrapped x lies to the right
        edge = tl.where(shift_w < 0, 0, width - wrapped)
        runs = tl.cdiv(height, BLOCK_E)
        edge_steps = _edge_steps(split - splits, edges, unit, num_samples, wrapped, runs)
        acc = _add_edge(
            acc, dy_edge_desc, x_edge_desc, edge_steps, unit, wrapped, runs,
            edge, edge + shift_w + side * width, shift_h - side, k, c, dy_pitch, x_pitch,
            PRECISION, BLOCK_E, BLOCK_K, BLOCK_C, SWAP, STAGES,
        )  # fmt: skip
        store_sum(sums, bands, -acc, row, k, tap, c, SWAP, MERGED, BY_GROUP, BLOCK_K, BLOCK_C)
    else:
        pixels, shift = height * width, shift_h * width + shift_w
        first_n, first_pixel, share, steps = first_run(
            split, splits, unit, num_samples, pixels, BLOCK_P
        )
        n, pixel, home, left = first_n, first_pixel, first_n, share
        NORMALIZES: tl.constexpr = (MAKER == "normalize") | (MAKER == "normalize gate")
        if NORMALIZES:
            at = normalizer_at(source, c, in_c, BLOCK_C)
        for _ in tl.range(0, steps, num_stages=STAGES):
            dy = dy_desc.load([n, pixel, k]).reshape(BLOCK_P, BLOCK_K)
            x = x_desc.load([n, pixel + shift, c]).reshape(BLOCK_P, BLOCK_C)
            if NORMALIZES:
                x = normalized_again(x, at, coefficient, FUNCTION)
            if MAKER == "gate":
                x = gated_again(x, gates_at(source[0], n, c, num_samples, in_c, BLOCK_C))
            elif MAKER == "normalize gate":
                x = gated_again(x, gates_at(source[3], n, c, num_samples, in_c, BLOCK_C))
            if MAKER != "":
                x = stored(x, x.dtype, PRECISION)
            acc = add_products(acc, dy, x, SWAP, PRECISION)
            if MAKER != "":
                acc = ended(acc)
            n, pixel, home, left = next_run(
                n, pixel, home, left, pixels, first_n, first_pixel, unit, share, BLOCK_P
            )
        store_sum(sums, bands, acc, row, k, tap, c, SWAP, MERGED, BY_GROUP, BLOCK_K, BLOCK_C)


@triton.jit(do_not_specialize=SIZES)
def grad_weight_taps_kernel(
    x_desc, dy_desc, x_edge_desc, dy_edge_desc, sums, bands,
    num_samples, height, width, in_c, out_c, x_pitch, dy_pitch, unit, splits, edges,
    range_start, pad_h, pad_w, dil_h, dil_w,
    FIRST: tl.constexpr, R: tl.constexpr, S: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    SWAP: tl.constexpr, MERGED: tl.constexpr, BY_GROUP: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """The flat kernel for a row of three taps, which share the loads of dy.

    With few input channels loads bound the sum. 64->128 @112 takes 0.68 ms, and 0.80 ms by
    `grad_weight_flat_kernel` (H200, 2026-11).
    """
    k, c, r, row = part_of(tl.program_id(0), in_c, out_c, bands, R, BLOCK_K, BLOCK_C, BY_GROUP)
    shift_h = r * dil_h - pad_h
    left_sum = load_sum(
        sums, bands, row, k, 3 * r, c, FIRST, SWAP, MERGED, BY_GROUP, BLOCK_K, BLOCK_C
    )
    mid_sum = load_sum(
        sums, bands, row, k, 3 * r + 1, c, FIRST, SWAP, MERGED, BY_GROUP, BLOCK_K, BLOCK_C
    )
    right_sum = load_sum(
        sums, bands, row, k, 3 * r + 2, c, FIRST, SWAP, MERGED, BY_GROUP, BLOCK_K, BLOCK_C
    )
    split = range_start + row
    if split >= splits:
        left_sum = -left_sum
        right_sum = -right_sum
        runs = tl.cdiv(height, BLOCK_E)
        edge_steps = _edge_steps(split - splits, edges, unit, num_samples, pad_w, runs)
        left_sum = _add_edge(
            left_sum, dy_edge_desc, x_edge_desc, edge_steps, unit, pad_w, runs,
            0, width - pad_w, shift_h - 1, k, c, dy_pitch, x_pitch,
            PRECISION, BLOCK_E, BLOCK_K, BLOCK_C, SWAP, STAGES,
        )  # fmt: skip
        right_sum = _add_edge(
            right_sum, dy_edge_desc, x_edge_desc, edge_steps, unit, pad_w, runs,
            width - pad_w, 0, shift_h + 1, k, c, dy_pitch, x_pitch,
            PRECISION, BLOCK_E, BLOCK_K, BLOCK_C, SWAP, STAGES,
        )  # fmt: skip
        store_sum(
            sums, bands, -left_sum, row, k, 3 * r, c, SWAP, MERGED, BY_GROUP, BLOCK_K, BLOCK_C
        )
        store_sum(
            sums, bands, mid_sum, row, k, 3 * r + 1, c, SWAP, MERGED, BY_GROUP, BLOCK_K, BLOCK_C
        )
        store_sum(
            sums, bands, -right_sum, row, k, 3 * r + 2, c, SWAP, MERGED, BY_GROUP, BLOCK_K, BLOCK_C
        )
    else:
        pixels, shift = height * width, shift_h * width - pad_w
        first_n, first_pixel, share, steps = first_run(
            split, splits, unit, num_samples, pixels, BLOCK_P
        )
        n, pixel, home, left = first_n, first_pixel, first_n, share
        for _ in tl.range(0, steps, num_stages=STAGES):
            dy = dy_desc.load([n, pixel, k]).reshape(BLOCK_P, BLOCK_K)
            x = x_desc.load([n, pixel + shift, c]).reshape(BLOCK_P, BLOCK_C)
            left_sum = add_products(left_sum, dy, x, SWAP, PRECISION)
            x = x_desc.load([n, pixel + shift + dil_w, c]).reshape(BLOCK_P, BLOCK_C)
            mid_sum = add_products(mid_sum, dy, x, SWAP, PRECISION)
            x = x_desc.load([n, pixel + shift + 2 * dil_w, c]).reshape(BLOCK_P, BLOCK_C)
            right_sum = add_products(right_sum, dy, x, SWAP, PRECISION)
            n, pixel, home, left = next_run(
                n, pixel, home, left, pixels, first_n, first_pixel, unit, share, BLOCK_P
            )
        store_sum(sums, bands, left_sum, row, k, 3 * r, c, SWAP, MERGED, BY_GROUP, BLOCK_K, BLOCK_C)
        store_sum(
            sums, bands, mid_sum, row, k, 3 * r + 1, c, SWAP, MERGED, BY_GROUP, BLOCK_K, BLOCK_C
        )
        store_sum(
            sums, bands, right_sum, row, k, 3 * r + 2, c, SWAP, MERGED, BY_GROUP, BLOCK_K, BLOCK_C
        )
